// How often the ops of a program run in a step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "trainer/program/walk.h"

namespace mbb::trainer {

// Calls of each segment, by what the micro-batch is: bit 0 first, bit 1 last.
using CallCounts = std::vector<std::array<int64_t, 4>>;

inline CallCounts count_calls(const Program& program) {
  CallCounts counts(program.segments.size());
  for (const Call& call : program.schedule) {
    const bool first = call.micro_batch == 0, last = call.micro_batch == program.micro_batches - 1;
    ++counts[static_cast<size_t>(call.segment)][static_cast<size_t>(first) + 2 * static_cast<size_t>(last)];
  }
  return counts;
}

// Runs of `op` in the calls of its segment.
inline int64_t runs_of(const Segment& segment, const std::array<int64_t, 4>& calls, const Op& op) {
  int64_t n = 0;
  for (size_t flags = 0; flags < 4; ++flags)
    if (!is_micro_batched(segment.kind) || runs(op.when, flags & 1, flags & 2)) n += calls[flags];
  return n;
}

}  // namespace mbb::trainer
