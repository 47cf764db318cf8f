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
        return t.view_of == kNoTensor && (t.scope == Scope::kCall || t.scope == Scope::kMicroBatch) &&
               t.category != Category::kInput;  // the host's, and the same for every step that replays it
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

// Calls of a segment by micro-batch; -1 where the schedule has none.
std::vector<int> calls_of(const Program& program, int segment) {
  std::vector<int> at(static_cast<size_t>(program.micro_batches), -1);
  for (size_t c = 0; c < program.schedule.size(); ++c)
    if (program.schedule[c].segment == segment)
      at[static_cast<size_t>(program.schedule[c].micro_batch)] = static_cast<int>(c);
  return at;
}

// Slots of a value that is written in call begin[m] and last read in call end[m] of each micro-batch m: slot m is free
// again when m ends, so a later micro-batch may take it only if it begins after that. Smallest where micro-batches
// begin in order, enough in any.
int ring_of(const std::vector<int>& begin, const std::vector<int>& end) {
  // earliest[i]: first call of all micro-batches from i on; it ascends, so the last one to begin before a call is found
  // by bisection.
  std::vector<int> earliest = begin;
  for (size_t i = earliest.size() - 1; i-- > 0;) earliest[i] = std::min(earliest[i], earliest[i + 1]);
  int ring = 1;
  for (size_t m = 0; m < begin.size(); ++m) {
    const auto later = std::lower_bound(earliest.begin(), earliest.end(), end[m]) - earliest.begin() - 1;
    ring = std::max(ring, static_cast<int>(later) - static_cast<int>(m) + 1);
  }
  return ring;
}

void size_rings(Program& program) {
  const std::vector<Use> uses = uses_of(program);   // again: in-place ops have changed who owns which bytes
  std::map<std::pair<int, int>, int> ring_between;  // (first, last segment)
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    Tensor& t = program.tensors[i];
    if (t.view_of != kNoTensor || t.scope != Scope::kMicroBatch || uses[i].segments.empty()) continue;
    const std::pair between{*uses[i].segments.begin(), *uses[i].segments.rbegin()};
    const auto [ring, added] = ring_between.try_emplace(between, 0);
    if (added) ring->second = ring_of(calls_of(program, between.first), calls_of(program, between.second));
    t.ring = ring->second;
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
