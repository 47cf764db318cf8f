// Slots, gathers and scatters of units.
#include "trainer/optim/sharding.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

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

// A bucket of a unit: those of a layer differ in the type of their weights.
struct Part {
  const Bucket* bucket = nullptr;
  TensorId slot = kNoTensor;  // its part of the unit's slot, flat, of its type
  int64_t first_element = 0;  // of it in what the slot lies in, counted in its type
  TensorId held = kNoTensor;  // the gradients that are partial over tensor ranks, summed over micro-batches
};

// What is gathered, or scattered, together, and where each segment touches its weights or its gradients.
struct Unit {
  int chunk = 0;
  std::string name;
  std::vector<Part> parts;
  std::map<int, Span> spans;  // by segment
  int ring_slot = kOwnSlot;
  int64_t bytes = 0;  // of all parts, one behind the other
};

bool overlap(const Unit& a, const Unit& b) {
  return std::any_of(a.spans.begin(), a.spans.end(), [&](const auto& entry) {
    const auto found = b.spans.find(entry.first);
    return found != b.spans.end() && entry.second.first <= found->second.last &&
           found->second.first <= entry.second.last;
  });
}

// Units take ring slots in turn; one that overlaps in a segment with one of those behind the next `neighbours` keeps a
// slot of its own.
void take_turns(std::vector<Unit>& units, size_t slots, size_t neighbours) {
  int turn = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    bool alone = false;
    for (size_t other = 0; other < units.size(); ++other) {
      const bool earlier = other < i;
      if (other == i || (earlier ? i - other : other - i) <= neighbours) continue;
      alone = alone || ((!earlier || units[other].ring_slot != kOwnSlot) && overlap(units[i], units[other]));
    }
    units[i].ring_slot = alone ? kOwnSlot : turn++ % static_cast<int>(slots);
  }
}

// A slot is shared by what takes it, whatever its type: only bytes count. Ring slots have the length of the longest
// unit that takes them. `dtype_of` gives the type of a bucket there.
template <typename TypeOf>
void declare_slots(Builder& b, std::vector<Unit>& units, const std::string& path, const TypeOf& dtype_of) {
  std::optional<DType> type;  // of all buckets
  bool mixed = false;
  std::map<int, int64_t> longest;
  for (Unit& unit : units) {
    for (const Part& part : unit.parts) {
      const DType of_part = dtype_of(*part.bucket);
      mixed = mixed || type.value_or(of_part) != of_part;
      type = of_part;
      unit.bytes += static_cast<int64_t>(bytes_of(of_part, static_cast<size_t>(part.bucket->elements)));
    }
    longest[unit.ring_slot] = std::max(longest[unit.ring_slot], unit.bytes);
  }
  const DType of_slots = mixed ? DType::kU16 : *type;
  const auto declare = [&](const std::string& name, int64_t bytes) {
    return declare_flat(b, name, of_slots, bytes / static_cast<int64_t>(bytes_of(of_slots, 1)), Category::kComm,
                        Scope::kStep);
  };
  std::map<int, TensorId> ring;
  for (const auto& [slot, bytes] : longest)
    if (slot != kOwnSlot) ring[slot] = declare(fmt::format("{}{}", path, slot), bytes);
  for (Unit& unit : units) {
    const bool own = unit.ring_slot == kOwnSlot;
    if (own && unit.parts.size() == 1) {
      Part& part = unit.parts[0];
      part.slot = declare_flat(b, fmt::format("{}.{}", path, part.bucket->path), dtype_of(*part.bucket),
                               part.bucket->elements, Category::kComm, Scope::kStep);
      continue;
    }
    const TensorId whole =
        own ? declare(fmt::format("{}.units.{}.parts", path, unit.name), unit.bytes) : ring.at(unit.ring_slot);
    int64_t offset = 0;
    for (Part& part : unit.parts) {
      Tensor t;
      t.path = fmt::format("{}.{}", path, part.bucket->path);
      t.dtype = dtype_of(*part.bucket);
      t.shape = Shape{part.bucket->elements};
      t.category = Category::kComm;
      t.scope = Scope::kStep;
      t.view_of = whole;
      t.view_offset_bytes = offset;
      part.first_element = offset / static_cast<int64_t>(bytes_of(t.dtype, 1));
      offset += t.bytes();
      part.slot = b.declare(std::move(t));
    }
  }
}

// A table's gradient reads it for its extents alone.
bool reads_values(const Op& op, size_t input) {
  return !(op.kind == &kEmbeddingGrad && input == 2) && !(op.kind == &kPositionEmbeddingGrad && input == 1);
}

class Sharding {
 public:
  // The units of dense or expert parameters.
  Sharding(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets, bool expert)
      : b_(b), p_(b.program()), l_(layout), d_(layout.config.data_parallel), name_(expert ? "experts." : "") {
    for (const Bucket& bucket : buckets) {
      if (bucket.expert != expert) continue;
      if (bucket.weights_sharded) add(weights_, bucket);
      if (bucket.grads_sharded) add(grads_, bucket);
    }
  }

  void run() {
    if (!weights_.empty()) gather_weights();
    if (!grads_.empty()) scatter_grads();
  }

 private:
  static void add(std::vector<Unit>& units, const Bucket& bucket) {
    auto unit = std::find_if(units.rbegin(), units.rend(),
                             [&](const Unit& u) { return u.chunk == bucket.chunk && u.name == bucket.unit; });
    if (unit == units.rend()) {
      units.push_back({.chunk = bucket.chunk, .name = bucket.unit});
      unit = units.rbegin();
    }
    unit->parts.push_back({.bucket = &bucket});
  }

  // Where the micro-batches' segments read (or write) the members of each unit.
  void find_spans(std::vector<Unit>& units, bool weights) {
    std::map<TensorId, size_t> unit_of;
    for (size_t u = 0; u < units.size(); ++u)
      for (const Part& part : units[u].parts)
        for (TensorId id : part.bucket->members) unit_of[weights ? id : p_.tensor(id).main_grad] = u;
    for (size_t s = 0; s < p_.segments.size(); ++s) {
      if (!is_micro_batched(p_.segments[s].kind)) continue;
      const std::vector<Op>& ops = p_.segments[s].ops;
      for (size_t o = 0; o < ops.size(); ++o) {
        const std::vector<TensorId>& ids = weights ? ops[o].in : ops[o].out;
        for (size_t i = 0; i < ids.size(); ++i)
          if (const auto found = unit_of.find(ids[i]); found != unit_of.end() && !(weights && !reads_values(ops[o], i)))
            units[found->second].spans[static_cast<int>(s)].add(o);
      }
    }
  }

  void gather_weights() {
    find_spans(weights_, true);
    // In the order of the forward, chunk after chunk.
    std::stable_sort(weights_.begin(), weights_.end(), [](const Unit& x, const Unit& y) {
      if (x.chunk != y.chunk) return x.chunk < y.chunk;
      return x.spans.begin()->second.first < y.spans.begin()->second.first;
    });
    const auto prefetch = static_cast<size_t>(d_.fsdp_prefetch_units);
    take_turns(weights_, d_.reshard_after_forward ? prefetch + 1 : weights_.size(), 0);
    declare_slots(b_, weights_, "units.gathered." + name_,
                  [&](const Bucket& bucket) { return b_.tensor(bucket.weights).dtype; });
    NewViews views;
    for (const Unit& unit : weights_)
      for (const Part& part : unit.parts)
        for (size_t i = 0; i < part.bucket->members.size(); ++i) place(views, part.bucket->members[i], part, i);
    views.apply(p_);
    for (size_t s = 0; s < p_.segments.size(); ++s)
      if (is_micro_batched(p_.segments[s].kind)) gather_in(static_cast<int>(s), prefetch);
  }

  // A view of a part's slot: views of views do not exist, so member `i` lies in what the slot lies in.
  void place(NewViews& views, TensorId tensor, const Part& part, size_t i) const {
    views.add(tensor, p_.storage(part.slot), part.first_element + part.bucket->ranges[i].offset);
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
      if (!forward && still_there(segment, used, i)) continue;
      size_t position = i < prefetch ? begin : span(*used[i - prefetch]).first;
      for (size_t before = 0; before < i; ++before)
        if (used[before]->ring_slot == used[i]->ring_slot && used[i]->ring_slot != kOwnSlot)
          position = std::max(position, span(*used[before]).last + 1);
      insertions.before(position, build_aside(b_, segment, [&] { gather(*used[i]); }));
    }
    insertions.apply(p_.segments[static_cast<size_t>(segment)]);
  }

  // Whether the slot of used[i] still holds it since the forward, which this backward follows at once.
  bool still_there(int segment, const std::vector<const Unit*>& used, size_t i) const {
    const auto takes = [&](const Unit* unit) { return unit->ring_slot == used[i]->ring_slot; };
    if (l_.pp > 1 || l_.vpp > 1 || p_.segments[static_cast<size_t>(segment)].kind != SegmentKind::kBackward)
      return false;
    if (std::any_of(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(i), takes)) return false;
    const auto last = std::find_if(weights_.rbegin(), weights_.rend(), [&](const Unit& unit) { return takes(&unit); });
    return &*last == used[i];
  }

  void gather(const Unit& unit) {
    const Stream stream = d_.overlap_param_gather ? Stream::kDp : Stream::kCompute;
    for (const Part& part : unit.parts) {
      const Bucket& bucket = *part.bucket;
      b_.emit(kAllGather, bucket.path + ".all_gather", {bucket.weights},
              over(bucket.groups.shard, bucket.groups.shard_size), {.stream = stream, .out = {part.slot}});
    }
  }

  void scatter_grads() {
    overwrite_grads();
    find_spans(grads_, false);
    // In the order of the backward.
    std::stable_sort(grads_.begin(), grads_.end(), [](const Unit& x, const Unit& y) {
      return x.chunk != y.chunk ? x.chunk > y.chunk : x.spans.rbegin()->second.first < y.spans.rbegin()->second.first;
    });
    take_turns(grads_, kGradSlots, kGradSlots - 1);  // the embedding's gradient comes between those of a layer
    // What is written in two segments waits for the second.
    for (Unit& unit : grads_)
      if (unit.spans.size() > 1) unit.ring_slot = kOwnSlot;
    declare_slots(b_, grads_, "units.grads." + name_, [&](const Bucket&) { return l_.main_grad_type(); });
    std::map<int, Insertions> insertions;
    NewViews views;
    for (Unit& unit : grads_)
      for (Part& part : unit.parts) {
        place_grads(part, views);
        const auto& [segment, span] = *unit.spans.rbegin();
        insertions[segment].before(span.last + 1, build_aside(b_, segment, [&] { scatter(part); }));
      }
    views.apply(p_);
    for (auto& [segment, inserted] : insertions) inserted.apply(p_.segments[static_cast<size_t>(segment)]);
  }

  // Gradients lie in the slot; those that are partial over tensor ranks stay whole and are summed over micro-batches
  // where they are, so that the tensor ranks add them up once a step and not in every micro-batch.
  void place_grads(Part& part, NewViews& views) {
    const Bucket& bucket = *part.bucket;
    if (bucket.partial_elements > 0)
      part.held = declare_flat(b_, bucket.path + ".partial_grads", l_.main_grad_type(), bucket.partial_elements,
                               Category::kComm, Scope::kStep);
    for (size_t i = 0; i < bucket.members.size(); ++i) {
      const Tensor& weight = p_.tensor(bucket.members[i]);
      if (weight.partial_over_tp)
        views.add(weight.main_grad, part.held, bucket.ranges[i].offset);
      else
        place(views, weight.main_grad, part, i);
    }
  }

  // The ops that add to what earlier micro-batches left go; their twins for the first micro-batch run in all.
  void overwrite_grads() {
    std::vector<bool> scattered(p_.tensors.size(), false);
    for (const Unit& unit : grads_)
      for (const Part& part : unit.parts)
        for (TensorId id : part.bucket->members)
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

  void scatter(const Part& part) {
    const Bucket& bucket = *part.bucket;
    const ReplicaGroups& g = bucket.groups;
    if (part.held != kNoTensor) {
      const TensorId partial = b_.view(part.slot, bucket.path + ".partial", Shape{bucket.partial_elements}, 0);
      b_.emit(kAllReduce, bucket.path + ".partial.all_reduce", {part.held}, over(g.tensor, g.tensor_size),
              {.when = When::kLast, .stream = Stream::kTp, .out = {part.held}});
      b_.emit(kCopy, bucket.path + ".partial.copy", {part.held}, NoAttrs{}, {.when = When::kLast, .out = {partial}});
      b_.emit(kFill, bucket.path + ".partial.zero", {part.held}, NoAttrs{},
              {.when = When::kNotLast, .out = {partial}});  // zeros, like the held ones in shape
    }
    const Stream stream = d_.overlap_grad_reduce ? Stream::kDp : Stream::kCompute;
    const std::string path = bucket.path + ".reduce_scatter";
    b_.emit(kReduceScatter, path, {part.slot}, over(g.shard, g.shard_size),
            {.when = When::kFirst, .stream = stream, .out = {bucket.main_grads}});
    const TensorId more = b_.emit1(kReduceScatter, path, {part.slot}, over(g.shard, g.shard_size),
                                   {.when = When::kNotFirst, .stream = stream, .category = Category::kComm});
    b_.emit(kAdd, path + ".add", {bucket.main_grads, more}, NoAttrs{},
            {.when = When::kNotFirst, .stream = stream, .out = {bucket.main_grads}});
  }

  Builder& b_;
  Program& p_;
  const Layout& l_;
  const DataParallelConfig& d_;
  std::string name_;
  std::vector<Unit> weights_;
  std::vector<Unit> grads_;
};

}  // namespace

void shard_units(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  for (const bool expert : {false, true}) Sharding(b, layout, buckets, expert).run();
}

}  // namespace mbb::trainer
