// Lifetimes of buffers over the walk (buffer_lives.h), their places (first_fit.h), and the fullest moment.
#include "trainer/program/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "profiler/base/text.h"
#include "trainer/ops/message_peers.h"
#include "trainer/program/buffer_lives.h"
#include "trainer/program/first_fit.h"
#include "trainer/program/segment_order.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// First and last use of a storage in the time of a micro-batch: segments, and the ops there.
struct Use {
  int first_segment = -1, first_op = 0;
  int last_segment = -1, last_op = 0;
};

std::vector<Use> find_uses(const Program& program) {
  std::vector<Use> uses(program.tensors.size());
  for (const int s : segment_order(program).segment) {
    const auto& ops = program.segments[static_cast<size_t>(s)].ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      const auto touch = [&](TensorId id) {
        Use& use = uses[static_cast<size_t>(program.storage(id))];
        if (use.first_segment < 0) use.first_segment = s, use.first_op = static_cast<int>(o);
        use.last_segment = s;
        use.last_op = static_cast<int>(o);
      };
      for (TensorId id : ops[o].in) touch(id);
      for (TensorId id : ops[o].out) touch(id);
    }
  }
  return uses;
}

// First call of each (segment, micro-batch).
std::vector<std::vector<int>> call_index(const Program& program) {
  std::vector<std::vector<int>> at(program.segments.size(),
                                   std::vector<int>(static_cast<size_t>(program.micro_batches), -1));
  for (size_t c = 0; c < program.schedule.size(); ++c)
    at[static_cast<size_t>(program.schedule[c].segment)][static_cast<size_t>(program.schedule[c].micro_batch)] =
        static_cast<int>(c);
  return at;
}

struct Item {
  LiveBuffer buffer;
  BufferLife life;
  Space space = Space::kDevice;
  Category category = Category::kActivation;
};

struct Items {
  CallSets sets;
  LifeFamilies families;
  std::vector<Item> list;
};

bool is_batched(const Op& op) {
  return (sends(op) || receives(op)) && std::get<CommAttrs>(op.attrs).form == MessageForm::kBatched;
}

// Batched messages at the ends of calls (put_messages_at_ends).
struct Exchanges {
  std::vector<int> first_send;  // [segment]: of those that end it; kOpEnd: there is none
  int receives = 0;             // the most that a segment begins with

  explicit Exchanges(const Program& program) {
    for (const Segment& segment : program.segments) {
      const auto& ops = segment.ops;
      const auto other = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return !is_batched(op); });
      receives = std::max(receives, static_cast<int>(other - ops.begin()));
      auto send = ops.end();
      while (send != other && is_batched(*std::prev(send))) --send;
      first_send.push_back(send == ops.end() ? kOpEnd : static_cast<int>(send - ops.begin()));
    }
  }
};

// Numbers the sets of calls that lifetimes need, each pair of segments and slot once.
class Lifetimes {
 public:
  Lifetimes(const Program& program, CallSets& sets)
      : p_(program), sets_(sets), at_(call_index(program)), exchanges_(program) {}

  BufferLife in_call(const Use& use) {
    BufferLife life;
    life.parts[0] = {use.first_op, use.last_op, segment_calls(use.first_segment)};
    outlast_exchange(life, use, life.parts[0].calls);
    return life;
  }

  BufferLife of_slot(const Tensor& tensor, const Use& use, int slot) {
    const auto key = std::tuple{use.first_segment, use.last_segment, slot, tensor.ring};
    auto found = slots_.find(key);
    if (found == slots_.end()) found = slots_.emplace(key, calls_of_slot(tensor, use, slot)).first;
    const auto& [begin, whole, end] = found->second;
    BufferLife life;
    if (use.first_segment == use.last_segment) {
      life.parts[0] = {use.first_op, use.last_op, begin};
    } else {
      life.whole = whole;
      life.parts = {LifePart{use.first_op, kOpEnd, begin}, LifePart{0, use.last_op, end}, LifePart{}};
    }
    outlast_exchange(life, use, use.first_segment == use.last_segment ? begin : end);
    return life;
  }

 private:
  // What a batched message sends last of all is there until the exchange is over.
  void outlast_exchange(BufferLife& life, const Use& use, size_t last_calls) {
    if (exchanges_.receives == 0 || use.last_op < exchanges_.first_send[static_cast<size_t>(use.last_segment)]) return;
    const auto [number, added] = nexts_.try_emplace(last_calls, 0);
    if (added) {
      CallBits next = sets_.none();
      sets_.each_call(last_calls, [&](size_t call) {
        if (call + 1 < p_.schedule.size() && is_micro_batched(p_.segment(p_.schedule[call + 1]).kind))
          set(next, static_cast<int>(call) + 1);
      });
      number->second = sets_.number(next);
    }
    life.parts[2] = {0, exchanges_.receives - 1, number->second};
  }

  size_t segment_calls(int segment) {
    const auto [number, added] = segments_.try_emplace(segment, 0);
    if (added) {
      CallBits calls = sets_.none();
      for (size_t c = 0; c < p_.schedule.size(); ++c)
        if (p_.schedule[c].segment == segment) set(calls, static_cast<int>(c));
      number->second = sets_.number(calls);
    }
    return number->second;
  }

  // The calls in which the slot's values begin, live whole, and end.
  std::array<size_t, 3> calls_of_slot(const Tensor& tensor, const Use& use, int slot) {
    CallBits first = sets_.none();
    CallBits whole = sets_.none();
    CallBits last = sets_.none();
    for (int m = slot; m < p_.micro_batches; m += tensor.ring) {
      const int begin = at_[static_cast<size_t>(use.first_segment)][static_cast<size_t>(m)];
      const int end = at_[static_cast<size_t>(use.last_segment)][static_cast<size_t>(m)];
      MB_CHECK(begin >= 0 && end >= begin, "value read before it is written: " + tensor.path);
      set(first, begin);
      for (int c = begin + 1; c < end; ++c) set(whole, c);
      set(last, end);
    }
    return {sets_.number(first), sets_.number(whole), sets_.number(last)};
  }

  const Program& p_;
  CallSets& sets_;
  std::vector<std::vector<int>> at_;
  Exchanges exchanges_;
  std::map<int, size_t> segments_;
  std::map<size_t, size_t> nexts_;  // by a set of calls: the calls behind them
  std::map<std::tuple<int, int, int, int>, std::array<size_t, 3>> slots_;
};

Items collect(const Program& program, const PlanOptions& options) {
  const std::vector<Use> uses = find_uses(program);
  Items items{CallSets(program.schedule.size()), {}, {}};
  Lifetimes lifetimes(program, items.sets);
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    const Use& use = uses[i];
    if (t.view_of != kNoTensor || use.first_segment < 0) continue;
    const int slots = t.scope == Scope::kMicroBatch ? t.ring : 1;
    for (int slot = 0; slot < slots; ++slot) {
      Item item;
      item.buffer = {static_cast<TensorId>(i), slot, 0, t.bytes()};
      item.space = t.space;
      item.category = t.category;
      if (t.scope == Scope::kPersistent || t.scope == Scope::kStep || t.category == Category::kInput)
        item.life.always = true;
      else
        item.life = t.scope == Scope::kCall ? lifetimes.in_call(use) : lifetimes.of_slot(t, use, slot);
      if (!options.release_comm && t.category == Category::kComm && t.scope == Scope::kCall)
        item.life.parts[0].last = kOpEnd;
      items.families.add(item.life);
      items.list.push_back(item);
    }
  }
  items.sets.compare_all();
  items.families.compare_all(items.sets);
  return items;
}

// Places those buffers from `start` on, and returns where they end.
int64_t place(Items& items, int64_t start, const std::function<bool(const Item&)>& chosen) {
  std::vector<Fit> fits;
  std::vector<Item*> placed;
  for (Item& item : items.list) {
    if (!chosen(item)) continue;
    fits.push_back({item.buffer.bytes, &item.life, 0});
    placed.push_back(&item);
  }
  const int64_t end = first_fit(items.sets, items.families, start, fits);
  for (size_t i = 0; i < fits.size(); ++i) placed[i]->buffer.offset = fits[i].offset;
  return end;
}

void place_device(Items& items, MemoryPlan& plan) {
  if (plan.options.one_range) {
    plan.arena_bytes = place(items, 0, [](const Item& item) { return item.space == Space::kDevice; });
    return;
  }
  for (size_t c = 0; c < plan.slab_bytes.size(); ++c) {
    const int64_t end = place(items, plan.arena_bytes, [&](const Item& item) {
      return item.space == Space::kDevice && item.category == static_cast<Category>(c);
    });
    plan.slab_bytes[c] = end - plan.arena_bytes;
    plan.arena_bytes = end;
  }
}

// The device's buffers that are not always alive, by family.
struct FamilyBuffers {
  std::vector<std::vector<const Item*>> items;
  std::vector<int64_t> bytes;  // of each family

  explicit FamilyBuffers(const Items& all) : items(all.families.size()), bytes(items.size(), 0) {
    for (const Item& item : all.list) {
      if (item.life.always || item.space != Space::kDevice) continue;
      items[item.life.family].push_back(&item);
      bytes[item.life.family] += item.buffer.bytes;
    }
  }
};

// A set of calls of a family that a call lies in: by LifeFamilies::Sets, whole or a part.
struct AliveIn {
  size_t family = 0;
  size_t set = 0;
};

// Of each of some calls, in their order, the families that are alive in it.
std::vector<std::vector<AliveIn>> alive_in(const Items& items, const FamilyBuffers& families, size_t all_calls,
                                           const std::vector<int>& calls) {
  CallBits asked = items.sets.none();
  std::vector<size_t> place(all_calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    set(asked, calls[i]);
    place[static_cast<size_t>(calls[i])] = i;
  }
  std::vector<std::vector<AliveIn>> alive(calls.size());
  for (size_t f = 0; f < families.items.size(); ++f) {
    if (families.items[f].empty()) continue;
    const LifeFamilies::Sets& sets = items.families.sets(f);
    for (size_t s = 0; s < sets.size(); ++s)
      items.sets.each_call(sets[s], asked, [&](size_t call) { alive[place[call]].push_back({f, s}); });
  }
  return alive;
}

// Live bytes at each op of a call, without what is always alive.
std::vector<int64_t> live_in_call(const FamilyBuffers& families, const std::vector<AliveIn>& alive_here, size_t ops) {
  std::vector<int64_t> live(ops + 1, 0);
  for (const auto& [f, set] : alive_here) {
    if (set == 0) {
      live[0] += families.bytes[f];
      continue;
    }
    for (const Item* item : families.items[f]) {
      const LifePart& alive = item->life.parts[set - 1];
      live[static_cast<size_t>(alive.first)] += item->buffer.bytes;
      if (static_cast<size_t>(alive.last) < ops) live[static_cast<size_t>(alive.last) + 1] -= item->buffer.bytes;
    }
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  live.pop_back();
  return live;
}

// One call of each kind, in order: calls of one segment that lie in the same sets hold the same buffers. Each set parts
// its calls from the others of their kind.
std::vector<int> calls_of_each_kind(const Program& program, const CallSets& sets) {
  std::vector<size_t> kind;
  for (const Call& call : program.schedule) kind.push_back(static_cast<size_t>(call.segment));
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<size_t> becomes(program.segments.size(), kNone);  // by kind, of the set at hand
  for (size_t s = 0; s < sets.size(); ++s) {
    std::vector<size_t> parted;
    sets.each_call(s, [&](size_t call) {
      const size_t was = kind[call];
      if (becomes[was] == kNone) {
        becomes[was] = becomes.size();
        becomes.push_back(kNone);
        parted.push_back(was);
      }
      kind[call] = becomes[was];
    });
    for (const size_t was : parted) becomes[was] = kNone;
  }
  std::vector<int> first;
  std::vector<bool> seen(becomes.size(), false);
  for (size_t c = 0; c < kind.size(); ++c) {
    if (!seen[kind[c]]) first.push_back(static_cast<int>(c));
    seen[kind[c]] = true;
  }
  return first;
}

// The fullest moment.
void find_peak(const Program& program, const Items& items, MemoryPlan& plan) {
  for (const Item& item : items.list)
    if (item.life.always && item.space == Space::kDevice) plan.peak_live_bytes += item.buffer.bytes;
  const int64_t base = plan.peak_live_bytes;
  const FamilyBuffers families(items);
  const std::vector<int> calls = calls_of_each_kind(program, items.sets);
  const std::vector<std::vector<AliveIn>> alive = alive_in(items, families, program.schedule.size(), calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    const int c = calls[i];
    const size_t ops = program.segment(program.schedule[static_cast<size_t>(c)]).ops.size();
    const std::vector<int64_t> live = live_in_call(families, alive[i], ops);
    for (size_t o = 0; o < live.size(); ++o) {
      if (base + live[o] <= plan.peak_live_bytes) continue;
      plan.peak_live_bytes = base + live[o];
      plan.peak_call = c;
      plan.peak_op = static_cast<int>(o);
    }
  }
}

bool alive_at(const Items& items, const Item& item, int call, int op) {
  if (item.space != Space::kDevice) return false;
  if (item.life.always || items.sets.contains(item.life.whole, call)) return true;
  return std::any_of(item.life.parts.begin(), item.life.parts.end(), [&](const LifePart& p) {
    return items.sets.contains(p.calls, call) && p.first <= op && op <= p.last;
  });
}

}  // namespace

MemoryPlan plan_memory(const Program& program, const PlanOptions& options) {
  MemoryPlan plan;
  plan.options = options;
  Items items = collect(program, options);
  place_device(items, plan);
  plan.host_bytes = place(items, 0, [](const Item& item) { return item.space == Space::kHost; });
  find_peak(program, items, plan);
  plan.offsets.resize(program.tensors.size());
  for (const Item& item : items.list) {
    plan.buffers.push_back(item.buffer);
    auto& slots = plan.offsets[static_cast<size_t>(item.buffer.tensor)];
    slots.resize(std::max(slots.size(), static_cast<size_t>(item.buffer.slot) + 1), 0);
    slots[static_cast<size_t>(item.buffer.slot)] = item.buffer.offset;
    if (alive_at(items, item, plan.peak_call, plan.peak_op))
      plan.peak_by_category[static_cast<size_t>(program.tensor(item.buffer.tensor).category)] += item.buffer.bytes;
  }
  return plan;
}

int64_t MemoryPlan::offset(const Program& program, TensorId id, int slot) const {
  const Tensor& t = program.tensor(id);
  const auto& slots = offsets[static_cast<size_t>(program.storage(id))];
  MB_CHECK(static_cast<size_t>(slot) < slots.size(), "tensor has no place in the plan: " + t.path);
  return slots[static_cast<size_t>(slot)] + t.view_offset_bytes;
}

std::vector<LiveBuffer> MemoryPlan::live_at_peak(const Program& program) const {
  std::vector<LiveBuffer> live;
  const Items items = collect(program, options);
  for (const Item& item : items.list) {
    if (!alive_at(items, item, peak_call, peak_op)) continue;
    LiveBuffer buffer = item.buffer;
    buffer.offset = offset(program, buffer.tensor, buffer.slot);
    live.push_back(buffer);
  }
  std::stable_sort(live.begin(), live.end(),
                   [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes > b.bytes; });
  return live;
}

namespace {

// Knobs that make less of a category.
std::string remedy(Category category, const Lowerable& lowerable) {
  const std::string batch = lowerable.micro_batch ? "a lower train.micro_batch_size or train.seq_length"
                                                  : "a lower train.seq_length, a higher parallel.context_parallel_size";
  const std::string tensor = "a higher parallel.tensor_model_parallel_size";
  switch (category) {
    case Category::kActivation:
      return (lowerable.activations ? "memory.recompute_granularity, " : "") + batch + ", or " + tensor;
    case Category::kLogits: return batch + ", or " + tensor;
    case Category::kWeight:
    case Category::kMainGrad: return tensor + " or parallel.pipeline_model_parallel_size";
    case Category::kMaster:
    case Category::kMoment:
      return lowerable.optimizer_unsharded ? "parallel.use_distributed_optimizer over more data-parallel GPUs"
                                           : "more data-parallel GPUs, over which they are sharded";
    default: return batch;
  }
}

// The two largest categories at the peak, with what helps.
std::string advice(const MemoryPlan& plan, int64_t capacity_bytes, const Lowerable& lowerable) {
  std::array<size_t, kCategories> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return plan.peak_by_category[a] > plan.peak_by_category[b]; });
  std::string text;
  for (size_t i = 0; i < 2 && plan.peak_by_category[order[i]] > 0; ++i)
    text += fmt::format("{}{} take {}: {}", i ? "; " : "", name(static_cast<Category>(order[i])),
                        format_bytes(static_cast<double>(plan.peak_by_category[order[i]])),
                        remedy(static_cast<Category>(order[i]), lowerable));
  // Where the step would fit without them.
  if (plan.arena_bytes <= capacity_bytes && plan.graph_bytes > 0)
    text = "host.enable_cuda_graph = false, or host.cuda_graph_scope = layer, whose graphs serve many micro-batches; " +
           text;
  return text;
}

}  // namespace

Status check_fits(const Program& program, const MemoryPlan& plan, int64_t capacity_bytes, const Lowerable& lowerable) {
  if (plan.device_bytes() <= capacity_bytes) return {};
  // A tensor counts with all its live slots.
  std::vector<std::pair<int64_t, TensorId>> totals;
  std::map<TensorId, std::pair<int64_t, int>> by_tensor;
  for (const LiveBuffer& buffer : plan.live_at_peak(program)) {
    auto& [bytes, slots] = by_tensor[buffer.tensor];
    bytes += buffer.bytes;
    ++slots;
  }
  for (const auto& [tensor, live] : by_tensor) totals.emplace_back(live.first, tensor);
  std::stable_sort(totals.begin(), totals.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string top;
  for (size_t i = 0; i < std::min<size_t>(totals.size(), 5); ++i) {
    const auto& [bytes, tensor] = totals[i];
    const int slots = by_tensor[tensor].second;
    top += fmt::format("{}{}{} {}", i ? ", " : "", program.tensor(tensor).path,
                       slots > 1 ? fmt::format(" ({} micro-batches)", slots) : "",
                       format_bytes(static_cast<double>(bytes)));
  }
  if (plan.graph_bytes > 0)
    top += fmt::format(", graphs of {} ops {}", plan.graph_ops, format_bytes(static_cast<double>(plan.graph_bytes)));
  std::string needed = format_bytes(static_cast<double>(plan.device_bytes()));
  std::string there = format_bytes(static_cast<double>(capacity_bytes));
  // What rounds to the same is told to the byte.
  if (needed == there) needed = fmt::format("{} B", plan.device_bytes()), there = fmt::format("{} B", capacity_bytes);
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("the step needs {} and there are {}; largest at the peak: {}", needed, there, top),
              advice(plan, capacity_bytes, lowerable));
}

}  // namespace mbb::trainer
