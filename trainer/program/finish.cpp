// Scopes, in-place outputs and ring sizes, derived from who reads what and from the schedule.
#include "trainer/program/finish.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "trainer/ops/op_kind.h"
#include "trainer/program/rings.h"
#include "trainer/program/segment_order.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// Where a storage is used: places of segments in time.
struct Use {
  int first = std::numeric_limits<int>::max(), last = -1;
  bool outside_micro_batches = false;  // a use is
  int last_read = -1;                  // the last place that reads it,
  size_t last_read_op = 0;             // and the last op there that does

  bool used() const { return last >= 0; }
  bool crosses_calls() const { return first < last; }
};

std::vector<Use> uses_of(const Program& program, const SegmentOrder& order) {
  std::vector<Use> uses(program.tensors.size());
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const auto& ops = program.segments[s].ops;
    const int place = order.place[s];
    const bool outside = !is_micro_batched(program.segments[s].kind);
    const auto touch = [&](TensorId id) -> Use& {
      Use& use = uses[static_cast<size_t>(program.storage(id))];
      use.first = std::min(use.first, place);
      use.last = std::max(use.last, place);
      use.outside_micro_batches = use.outside_micro_batches || outside;
      return use;
    };
    for (size_t o = 0; o < ops.size(); ++o) {
      for (TensorId id : ops[o].in) {
        Use& use = touch(id);
        if (place < use.last_read) continue;
        use.last_read = place;
        use.last_read_op = o;
      }
      for (TensorId id : ops[o].out) touch(id);
    }
  }
  return uses;
}

void set_scopes(Program& program, const std::vector<Use>& uses) {
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    Tensor& t = program.tensors[i];
    if (t.view_of != kNoTensor || t.scope != Scope::kCall || !uses[i].crosses_calls()) continue;
    MB_CHECK(!uses[i].outside_micro_batches,
             "crosses calls outside micro-batches, and is not marked step or persistent: " + t.path);
    t.scope = Scope::kMicroBatch;
  }
}

bool read_after(const Use& use, int place, size_t op) {
  return use.last_read > place || (use.last_read == place && use.last_read_op > op);
}

// out takes the bytes of in, or in those of out when only out outlives the call.
void alias_in_place(Program& program, const SegmentOrder& order, const std::vector<Use>& uses) {
  std::vector<std::vector<TensorId>> views(program.tensors.size());  // of each storage
  for (size_t i = 0; i < program.tensors.size(); ++i)
    if (const TensorId of = program.tensors[i].view_of; of != kNoTensor)
      views[static_cast<size_t>(of)].push_back(static_cast<TensorId>(i));
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
      if (read_after(uses[static_cast<size_t>(op.in[0])], order.place[s], o)) continue;
      const bool out_owns = out.scope == Scope::kMicroBatch && in.scope == Scope::kCall;
      if (out.scope == Scope::kMicroBatch && !out_owns) continue;
      const TensorId owner = out_owns ? op.out[0] : op.in[0];
      const TensorId viewer = out_owns ? op.in[0] : op.out[0];
      std::vector<TensorId> moved = std::move(views[static_cast<size_t>(viewer)]);
      views[static_cast<size_t>(viewer)].clear();
      for (const TensorId id : moved) program.tensor(id).view_of = owner;
      moved.push_back(viewer);
      std::vector<TensorId>& at_owner = views[static_cast<size_t>(owner)];
      at_owner.insert(at_owner.end(), moved.begin(), moved.end());
      Tensor& view = program.tensor(viewer);
      view.view_of = owner;
      view.scope = program.tensor(owner).scope;
    }
  }
}

void size_rings(Program& program, const SegmentOrder& order) {
  const std::vector<Use> uses = uses_of(program, order);  // again: in-place ops have changed who owns which bytes
  const auto in_ring = [&](size_t i) {
    const Tensor& t = program.tensors[i];
    return t.view_of == kNoTensor && t.scope == Scope::kMicroBatch && uses[i].used();
  };
  const auto span_of = [&](size_t i) {
    const auto segment = [&](int place) { return order.segment[static_cast<size_t>(place)]; };
    return LifeSpan{segment(uses[i].first), segment(uses[i].last)};
  };
  std::set<LifeSpan> spans;
  for (size_t i = 0; i < program.tensors.size(); ++i)
    if (in_ring(i)) spans.insert(span_of(i));
  const std::map<LifeSpan, int> rings = ring_sizes(program, spans);
  for (size_t i = 0; i < program.tensors.size(); ++i)
    if (in_ring(i)) program.tensors[i].ring = rings.at(span_of(i));
  // The host writes all micro-batches of a step before it starts.
  for (Tensor& t : program.tensors)
    if (t.category == Category::kInput) t.ring = program.micro_batches;
  for (Tensor& t : program.tensors)
    if (t.view_of != kNoTensor) t.ring = program.tensor(t.view_of).ring, t.scope = program.tensor(t.view_of).scope;
}

}  // namespace

void finish_program(Program& program) {
  const SegmentOrder order = segment_order(program);
  const std::vector<Use> uses = uses_of(program, order);
  set_scopes(program, uses);
  alias_in_place(program, order, uses);
  size_rings(program, order);
}

}  // namespace mbb::trainer
