// Scopes, in-place outputs and ring sizes, derived from who reads what and from the schedule.
#include "trainer/program/finish.h"

#include <algorithm>
#include <map>
#include <set>

#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// Where a storage is used: segments, and in each the last op that reads it.
struct Use {
  std::set<int> segments;
  std::map<int, size_t> last_read;  // segment -> op index
};

std::vector<Use> uses_of(const Program& program) {
  std::vector<Use> uses(program.tensors.size());
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const auto& ops = program.segments[s].ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      for (TensorId id : ops[o].in) {
        Use& use = uses[static_cast<size_t>(program.storage(id))];
        use.segments.insert(static_cast<int>(s));
        use.last_read[static_cast<int>(s)] = o;
      }
      for (TensorId id : ops[o].out)
        uses[static_cast<size_t>(program.storage(id))].segments.insert(static_cast<int>(s));
    }
  }
  return uses;
}

void set_scopes(Program& program, const std::vector<Use>& uses) {
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    Tensor& t = program.tensors[i];
    if (t.view_of != kNoTensor || t.scope != Scope::kCall || uses[i].segments.size() < 2) continue;
    for (int s : uses[i].segments)
      MB_CHECK(is_micro_batched(program.segments[static_cast<size_t>(s)].kind),
               "crosses calls outside micro-batches, and is not marked step or persistent: " + t.path);
    t.scope = Scope::kMicroBatch;
  }
}

// Position of a segment's call among those of one micro-batch: forwards before backwards, in segment order.
bool read_after(const Use& use, int segment, size_t op) {
  for (const auto& [s, o] : use.last_read)
    if (s > segment || (s == segment && o > op)) return true;
  return false;
}

// out takes the bytes of in, or in those of out when only out outlives the call.
void alias_in_place(Program& program, const std::vector<Use>& uses) {
  for (size_t s = 0; s < program.segments.size(); ++s) {
    auto& ops = program.segments[s].ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      const Op& op = ops[o];
      if (!op.kind->in_place || op.in.empty() || op.in[0] == op.out[0]) continue;
      Tensor& in = program.tensor(op.in[0]);
      Tensor& out = program.tensor(op.out[0]);
      const auto movable = [](const Tensor& t) {
        return t.view_of == kNoTensor && (t.scope == Scope::kCall || t.scope == Scope::kMicroBatch);
      };
      if (!movable(in) || !movable(out) || in.bytes() != out.bytes()) continue;
      if (read_after(uses[static_cast<size_t>(op.in[0])], static_cast<int>(s), o)) continue;
      const bool out_owns = out.scope == Scope::kMicroBatch && in.scope == Scope::kCall;
      if (out.scope == Scope::kMicroBatch && !out_owns) continue;
      const TensorId owner = out_owns ? op.out[0] : op.in[0];
      const TensorId viewer = out_owns ? op.in[0] : op.out[0];
      for (Tensor& t : program.tensors)
        if (t.view_of == viewer) t.view_of = owner;
      Tensor& view = program.tensor(viewer);
      view.view_of = owner;
      view.scope = program.tensor(owner).scope;
    }
  }
}

void size_rings(Program& program) {
  struct Window {
    int first_call = -1, last_call = -1;
  };
  // alive[tensor][micro-batch] = calls between first and last use.
  std::map<TensorId, std::vector<Window>> alive;
  walk(program, [&](int c, const Call& call, int, const Op& op) {
    const auto touch = [&](TensorId id) {
      const TensorId storage = program.storage(id);
      if (program.tensor(storage).scope != Scope::kMicroBatch) return;
      auto& windows = alive[storage];
      windows.resize(static_cast<size_t>(program.micro_batches));
      Window& w = windows[static_cast<size_t>(call.micro_batch)];
      if (w.first_call < 0) w.first_call = c;
      w.last_call = c;
    };
    for (TensorId id : op.in) touch(id);
    for (TensorId id : op.out) touch(id);
  });
  for (auto& [id, windows] : alive) {
    // Slot j is free again when micro-batch j ends, so micro-batch j + ring may start only after it.
    int ring = 1;
    for (int m = 0; m < program.micro_batches; ++m)
      for (int later = m + ring; later < program.micro_batches; ++later)
        if (windows[static_cast<size_t>(later)].first_call < windows[static_cast<size_t>(m)].last_call)
          ring = std::max(ring, later - m + 1);
    program.tensor(id).ring = std::min(ring, program.micro_batches);
  }
  // The host writes all micro-batches of a step before it starts.
  for (Tensor& t : program.tensors)
    if (t.category == Category::kInput) t.ring = program.micro_batches;
  for (Tensor& t : program.tensors)
    if (t.view_of != kNoTensor) t.ring = program.tensor(t.view_of).ring, t.scope = program.tensor(t.view_of).scope;
}

}  // namespace

void finish_program(Program& program) {
  const std::vector<Use> uses = uses_of(program);
  set_scopes(program, uses);
  alias_in_place(program, uses);
  size_rings(program);
}

}  // namespace mbb::trainer
