// The one walk over a step: every call of the schedule, every op of its segment that runs there, in program order.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

inline bool is_micro_batched(SegmentKind kind) {
  return kind == SegmentKind::kForward || kind == SegmentKind::kBackward || kind == SegmentKind::kWgrad;
}

// Whether `op` runs in `call`: calls outside micro-batches run all their ops.
inline bool runs_in(const Program& program, const Call& call, const Op& op) {
  if (!is_micro_batched(program.segment(call).kind)) return true;
  return runs(op.when, call.micro_batch == 0, call.micro_batch == program.micro_batches - 1);
}

// Slot of a tensor in a call (0 unless the tensor lives in a ring).
inline int slot(const Tensor& tensor, const Call& call) {
  return tensor.scope == Scope::kMicroBatch ? call.micro_batch % tensor.ring : 0;
}

// Calls visit(call_index, call, op_index, op). `visit` returns void, or a Status whose error ends the walk.
template <typename Visit>
auto walk(const Program& program, Visit&& visit)
    -> decltype(visit(0, program.schedule[0], 0, program.segments[0].ops[0])) {
  using Answer = decltype(visit(0, program.schedule[0], 0, program.segments[0].ops[0]));
  for (size_t c = 0; c < program.schedule.size(); ++c) {
    const Call& call = program.schedule[c];
    const std::vector<Op>& ops = program.segment(call).ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      if (!runs_in(program, call, ops[o])) continue;
      if constexpr (std::is_void_v<Answer>) {
        visit(static_cast<int>(c), call, static_cast<int>(o), ops[o]);
      } else {
        Answer answer = visit(static_cast<int>(c), call, static_cast<int>(o), ops[o]);
        if (!answer.has_value()) return answer;
      }
    }
  }
  if constexpr (!std::is_void_v<Answer>) return Answer{};
}

}  // namespace mbb::trainer
