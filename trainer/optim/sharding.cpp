// Slots, gathers and scatters of units.
#include "trainer/optim/sharding.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/passes/op_lists.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

constexpr int kOwnSlot = -1;  // of a unit that shares with nobody
constexpr size_t kGradSlots = 2;

CommAttrs over(GroupKind group, int size) {
  return {.group = group, .group_size = size};
}

// A unit, and where each segment touches its weights or its gradients.
struct Unit {
  const Bucket* bucket = nullptr;
  std::map<int, Span> spans;  // by segment
  int ring_slot = kOwnSlot;
  TensorId slot = kNoTensor;  // the flat buffer the unit is gathered into or scattered out of
  TensorId held = kNoTensor;  // the unit's gradients that are partial over tensor ranks, summed over micro-batches
};

bool overlap(const Unit& a, const Unit& b) {
  return std::any_of(a.spans.begin(), a.spans.end(), [&](const auto& entry) {
    const auto found = b.spans.find(entry.first);
    return found != b.spans.end() && entry.second.first <= found->second.last &&
           found->second.first <= entry.second.last;
  });
}

// Units take ring slots in turn; one that overlaps with the next in a segment keeps a slot of its own.
void take_turns(std::vector<Unit>& units, size_t slots) {
  int turn = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool alone =
        std::any_of(units.begin() + static_cast<std::ptrdiff_t>(i) + 1, units.end(),
                    [&](const Unit& later) { return overlap(units[i], later); }) ||
        std::any_of(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const Unit& earlier) { return earlier.ring_slot != kOwnSlot && overlap(earlier, units[i]); });
    units[i].ring_slot = alone ? kOwnSlot : turn++ % static_cast<int>(slots);
  }
}

// Ring slots have the length of the longest unit that takes them.
void declare_slots(Builder& b, std::vector<Unit>& units, const std::string& path, DType dtype) {
  std::map<int, int64_t> longest;
  for (const Unit& unit : units)
    if (unit.ring_slot != kOwnSlot) longest[unit.ring_slot] = std::max(longest[unit.ring_slot], unit.bucket->elements);
  std::map<int, TensorId> ring;
  for (const auto& [slot, elements] : longest)
    ring[slot] = declare_flat(b, fmt::format("{}{}", path, slot), dtype, elements, Category::kComm, Scope::kStep);
  for (Unit& unit : units) {
    const Bucket& bucket = *unit.bucket;
    if (unit.ring_slot == kOwnSlot) {
      unit.slot = declare_flat(b, fmt::format("{}.{}", path, bucket.path), dtype, bucket.elements, Category::kComm,
                               Scope::kStep);
    } else {
      unit.slot = b.view(ring.at(unit.ring_slot), fmt::format("{}.{}", path, bucket.path), Shape{bucket.elements}, 0);
    }
  }
}

// A view of a unit's slot: views of views do not exist, so it lies in what the slot lies in.
void place(Program& program, TensorId tensor, const Unit& unit, int64_t offset) {
  make_view(program, tensor, program.storage(unit.slot), offset);
}

class Sharding {
 public:
  // The units of dense or expert parameters of one type.
  Sharding(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets, bool expert, DType dtype)
      : b_(b),
        p_(b.program()),
        l_(layout),
        d_(layout.config.data_parallel),
        name_(std::string(expert ? "experts." : "") + (dtype == DType::kE4M3 ? "fp8." : "")),
        dtype_(dtype) {
    for (const Bucket& bucket : buckets) {
      if (bucket.expert != expert || b.tensor(bucket.weights).dtype != dtype) continue;
      if (bucket.weights_sharded) weights_.push_back({.bucket = &bucket});
      if (bucket.grads_sharded) grads_.push_back({.bucket = &bucket});
    }
  }

  void run() {
    if (!weights_.empty()) gather_weights();
    if (!grads_.empty()) scatter_grads();
  }

 private:
  // Where the micro-batches' segments read (or write) the members of each unit.
  void find_spans(std::vector<Unit>& units, bool weights) {
    std::map<TensorId, size_t> unit_of;
    for (size_t u = 0; u < units.size(); ++u)
      for (TensorId id : units[u].bucket->members) unit_of[weights ? id : p_.tensor(id).main_grad] = u;
    for (size_t s = 0; s < p_.segments.size(); ++s) {
      if (!is_micro_batched(p_.segments[s].kind)) continue;
      const std::vector<Op>& ops = p_.segments[s].ops;
      for (size_t o = 0; o < ops.size(); ++o)
        for (TensorId id : weights ? ops[o].in : ops[o].out)
          if (const auto found = unit_of.find(id); found != unit_of.end())
            units[found->second].spans[static_cast<int>(s)].add(o);
    }
  }

  void gather_weights() {
    find_spans(weights_, true);
    // In the order of the forward, chunk after chunk.
    std::stable_sort(weights_.begin(), weights_.end(), [](const Unit& x, const Unit& y) {
      if (x.bucket->chunk != y.bucket->chunk) return x.bucket->chunk < y.bucket->chunk;
      return x.spans.begin()->second.first < y.spans.begin()->second.first;
    });
    const auto prefetch = static_cast<size_t>(d_.fsdp_prefetch_units);
    take_turns(weights_, d_.reshard_after_forward ? prefetch + 1 : weights_.size());
    declare_slots(b_, weights_, "units.gathered." + name_, dtype_);
    for (const Unit& unit : weights_)
      for (size_t i = 0; i < unit.bucket->members.size(); ++i)
        place(p_, unit.bucket->members[i], unit, unit.bucket->ranges[i].offset);
    for (size_t s = 0; s < p_.segments.size(); ++s)
      if (is_micro_batched(p_.segments[s].kind)) gather_in(static_cast<int>(s), prefetch);
  }

  // Gathers stand `prefetch` units ahead of the first use, but not before the last use of what is in the slot.
  void gather_in(int segment, size_t prefetch) {
    const bool forward = p_.segments[static_cast<size_t>(segment)].kind == SegmentKind::kForward;
    std::vector<const Unit*> used;
    for (const Unit& unit : weights_)
      if (unit.spans.contains(segment) && (forward || (d_.reshard_after_forward && unit.ring_slot != kOwnSlot)))
        used.push_back(&unit);
    const auto span = [&](const Unit& unit) -> const Span& { return unit.spans.at(segment); };
    std::stable_sort(used.begin(), used.end(),
                     [&](const Unit* x, const Unit* y) { return span(*x).first < span(*y).first; });
    // Behind the messages that a segment begins with: they go in one batch with those the call before ends with.
    const std::vector<Op>& ops = p_.segments[static_cast<size_t>(segment)].ops;
    const auto begin = static_cast<size_t>(
        std::find_if(ops.begin(), ops.end(), [](const Op& op) { return !receives(op); }) - ops.begin());
    Insertions insertions;
    for (size_t i = 0; i < used.size(); ++i) {
      size_t position = i < prefetch ? begin : span(*used[i - prefetch]).first;
      for (size_t before = 0; before < i; ++before)
        if (used[before]->ring_slot == used[i]->ring_slot && used[i]->ring_slot != kOwnSlot)
          position = std::max(position, span(*used[before]).last + 1);
      insertions.before(position, build_aside(b_, segment, [&] { gather(*used[i]); }));
    }
    insertions.apply(p_.segments[static_cast<size_t>(segment)]);
  }

  void gather(const Unit& unit) {
    const Bucket& bucket = *unit.bucket;
    const Stream stream = d_.overlap_param_gather ? Stream::kDp : Stream::kCompute;
    b_.emit(kAllGather, bucket.path + ".all_gather", {bucket.weights},
            over(bucket.groups.shard, bucket.groups.shard_size), {.stream = stream, .out = {unit.slot}});
  }

  void scatter_grads() {
    overwrite_grads();
    find_spans(grads_, false);
    // In the order of the backward.
    std::stable_sort(grads_.begin(), grads_.end(), [](const Unit& x, const Unit& y) {
      return x.bucket->chunk != y.bucket->chunk ? x.bucket->chunk > y.bucket->chunk
                                                : x.spans.rbegin()->second.first < y.spans.rbegin()->second.first;
    });
    take_turns(grads_, kGradSlots);
    // What is written in two segments waits for the second.
    for (Unit& unit : grads_)
      if (unit.spans.size() > 1) unit.ring_slot = kOwnSlot;
    declare_slots(b_, grads_, "units.grads." + name_, l_.main_grad_type());
    std::map<int, Insertions> insertions;
    for (Unit& unit : grads_) {
      place_grads(unit);
      const auto& [segment, span] = *unit.spans.rbegin();
      insertions[segment].before(span.last + 1, build_aside(b_, segment, [&] { scatter(unit); }));
    }
    for (auto& [segment, inserted] : insertions) inserted.apply(p_.segments[static_cast<size_t>(segment)]);
  }

  // Gradients lie in the slot; those that are partial over tensor ranks stay whole and are summed over micro-batches
  // where they are, so that the tensor ranks add them up once a step and not in every micro-batch.
  void place_grads(Unit& unit) {
    const Bucket& bucket = *unit.bucket;
    if (bucket.partial_elements > 0)
      unit.held = declare_flat(b_, bucket.path + ".partial_grads", l_.main_grad_type(), bucket.partial_elements,
                               Category::kComm, Scope::kStep);
    for (size_t i = 0; i < bucket.members.size(); ++i) {
      const Tensor& weight = p_.tensor(bucket.members[i]);
      if (weight.partial_over_tp)
        make_view(p_, weight.main_grad, unit.held, bucket.ranges[i].offset);
      else
        place(p_, weight.main_grad, unit, bucket.ranges[i].offset);
    }
  }

  // The ops that add to what earlier micro-batches left go; their twins for the first micro-batch run in all.
  void overwrite_grads() {
    std::vector<bool> scattered(p_.tensors.size(), false);
    for (const Unit& unit : grads_)
      for (TensorId id : unit.bucket->members)
        scattered[static_cast<size_t>(p_.tensor(id).main_grad)] = !p_.tensor(id).partial_over_tp;
    const auto writes = [&](const Op& op) {
      return std::any_of(op.out.begin(), op.out.end(), [&](TensorId id) { return scattered[static_cast<size_t>(id)]; });
    };
    for (Segment& segment : p_.segments) {
      std::erase_if(segment.ops, [&](const Op& op) { return op.when == When::kNotFirst && writes(op); });
      for (Op& op : segment.ops)
        if (op.when == When::kFirst && writes(op)) op.when = When::kAlways;
    }
  }

  void scatter(const Unit& unit) {
    const Bucket& bucket = *unit.bucket;
    const ReplicaGroups& g = bucket.groups;
    if (unit.held != kNoTensor) {
      const TensorId part = b_.view(unit.slot, bucket.path + ".partial", Shape{bucket.partial_elements}, 0);
      b_.emit(kAllReduce, bucket.path + ".partial.all_reduce", {unit.held}, over(g.tensor, g.tensor_size),
              {.when = When::kLast, .stream = Stream::kTp, .out = {unit.held}});
      b_.emit(kCopy, bucket.path + ".partial.copy", {unit.held}, NoAttrs{}, {.when = When::kLast, .out = {part}});
      b_.emit(kFill, bucket.path + ".partial.zero", {unit.held}, NoAttrs{},
              {.when = When::kNotLast, .out = {part}});  // zeros, like the held ones in shape
    }
    const Stream stream = d_.overlap_grad_reduce ? Stream::kDp : Stream::kCompute;
    const std::string path = bucket.path + ".reduce_scatter";
    b_.emit(kReduceScatter, path, {unit.slot}, over(g.shard, g.shard_size),
            {.when = When::kFirst, .stream = stream, .out = {bucket.main_grads}});
    const TensorId part = b_.emit1(kReduceScatter, path, {unit.slot}, over(g.shard, g.shard_size),
                                   {.when = When::kNotFirst, .stream = stream, .category = Category::kComm});
    b_.emit(kAdd, path + ".add", {bucket.main_grads, part}, NoAttrs{},
            {.when = When::kNotFirst, .stream = stream, .out = {bucket.main_grads}});
  }

  Builder& b_;
  Program& p_;
  const Layout& l_;
  const DataParallelConfig& d_;
  std::string name_;
  DType dtype_;
  std::vector<Unit> weights_;
  std::vector<Unit> grads_;
};

}  // namespace

void shard_units(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  for (const bool expert : {false, true})
    for (const DType dtype : {layout.compute, DType::kE4M3}) Sharding(b, layout, buckets, expert, dtype).run();
}

}  // namespace mbb::trainer
