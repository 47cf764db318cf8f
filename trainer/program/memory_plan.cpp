// Lifetimes over the walk as bit sets of calls, and first-fit placement by size.
//
// A lifetime is the calls it covers whole plus at most two kinds of calls it covers in part: from an op on (where a
// micro-batch's value is first written) and up to an op (where it is last read). Values inside one call cover a range
// of ops in every call of their segment. So a conflict is a few word-wise ANDs, whatever the number of micro-batches.
#include "trainer/program/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "profiler/base/text.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

using Bits = std::vector<uint64_t>;
constexpr int kOpEnd = std::numeric_limits<int>::max();

void set(Bits& bits, int i) {
  bits[static_cast<size_t>(i) / 64] |= uint64_t{1} << (i % 64);
}
bool get(const Bits& bits, int i) {
  return (bits[static_cast<size_t>(i) / 64] >> (i % 64)) & 1;
}
bool meet(const Bits& a, const Bits& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] & b[i]) return true;
  return false;
}

// Calls in which the buffer is alive from op `first` to op `last`.
struct Part {
  int first = 0;
  int last = kOpEnd;
  Bits calls;
};

struct Lifetime {
  bool always = false;
  Bits whole;
  std::vector<Part> parts;
};

bool conflict(const Lifetime& a, const Lifetime& b) {
  if (a.always || b.always) return true;
  if (meet(a.whole, b.whole)) return true;
  for (const Part& p : b.parts)
    if (meet(a.whole, p.calls)) return true;
  for (const Part& p : a.parts) {
    if (meet(p.calls, b.whole)) return true;
    for (const Part& q : b.parts)
      if (p.first <= q.last && q.first <= p.last && meet(p.calls, q.calls)) return true;
  }
  return false;
}

// First and last use of a storage in each call class: segment and op range.
struct Use {
  int first_segment = -1, first_op = 0;
  int last_segment = -1, last_op = 0;
};

std::vector<Use> find_uses(const Program& program) {
  std::vector<Use> uses(program.tensors.size());
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const auto& ops = program.segments[s].ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      const auto touch = [&](TensorId id) {
        Use& use = uses[static_cast<size_t>(program.storage(id))];
        if (use.first_segment < 0) use.first_segment = static_cast<int>(s), use.first_op = static_cast<int>(o);
        use.last_segment = static_cast<int>(s);
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

Lifetime lifetime_in_call(const Program& program, const Use& use, const Bits& none) {
  Lifetime life{false, none, {Part{use.first_op, use.last_op, none}}};
  for (size_t c = 0; c < program.schedule.size(); ++c)
    if (program.schedule[c].segment == use.first_segment) set(life.parts[0].calls, static_cast<int>(c));
  return life;
}

Lifetime lifetime_of_slot(const Program& program, const Tensor& tensor, const Use& use, int slot,
                          const std::vector<std::vector<int>>& at, const Bits& none) {
  Lifetime life{false, none, {Part{use.first_op, kOpEnd, none}, Part{0, use.last_op, none}}};
  for (int m = slot; m < program.micro_batches; m += tensor.ring) {
    const int begin = at[static_cast<size_t>(use.first_segment)][static_cast<size_t>(m)];
    const int end = at[static_cast<size_t>(use.last_segment)][static_cast<size_t>(m)];
    MB_CHECK(begin >= 0 && end > begin, "value read before it is written: " + tensor.path);
    set(life.parts[0].calls, begin);
    for (int c = begin + 1; c < end; ++c) set(life.whole, c);
    set(life.parts[1].calls, end);
  }
  return life;
}

struct Item {
  LiveBuffer buffer;
  Lifetime life;
};

std::vector<Item> collect(const Program& program) {
  const std::vector<Use> uses = find_uses(program);
  const auto at = call_index(program);
  const Bits none(program.schedule.size() / 64 + 1, 0);
  std::vector<Item> items;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    const Use& use = uses[i];
    if (t.view_of != kNoTensor || use.first_segment < 0) continue;
    const int slots = t.scope == Scope::kMicroBatch ? t.ring : 1;
    for (int slot = 0; slot < slots; ++slot) {
      Item item;
      item.buffer = {static_cast<TensorId>(i), slot, 0, t.bytes()};
      const bool whole_step =
          t.scope == Scope::kPersistent || t.scope == Scope::kStep || t.category == Category::kInput;
      if (whole_step)
        item.life.always = true;
      else if (t.scope == Scope::kCall)
        item.life = lifetime_in_call(program, use, none);
      else
        item.life = lifetime_of_slot(program, t, use, slot, at, none);
      items.push_back(std::move(item));
    }
  }
  return items;
}

int64_t aligned(int64_t bytes) {
  return (bytes + MemoryPlan::kAlign - 1) / MemoryPlan::kAlign * MemoryPlan::kAlign;
}

void place(std::vector<Item>& items, MemoryPlan& plan) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // What is always alive goes first and lies together at the bottom.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (items[a].life.always != items[b].life.always) return items[a].life.always;
    return items[a].buffer.bytes > items[b].buffer.bytes;
  });
  int64_t bottom = 0;
  std::vector<size_t> placed;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (size_t index : order) {
    LiveBuffer& buffer = items[index].buffer;
    if (items[index].life.always) {
      buffer.offset = bottom;
      bottom += aligned(buffer.bytes);
      plan.arena_bytes = bottom;
      continue;
    }
    taken.clear();
    for (size_t other : placed)
      if (conflict(items[index].life, items[other].life))
        taken.emplace_back(items[other].buffer.offset, items[other].buffer.offset + aligned(items[other].buffer.bytes));
    std::sort(taken.begin(), taken.end());
    int64_t offset = bottom;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= aligned(buffer.bytes)) break;
      offset = std::max(offset, end);
    }
    buffer.offset = offset;
    placed.push_back(index);
    plan.arena_bytes = std::max(plan.arena_bytes, offset + aligned(buffer.bytes));
  }
}

// The fullest moment: live bytes at the start of each op where something begins, call by call.
void find_peak(const Program& program, const std::vector<Item>& items, MemoryPlan& plan) {
  std::array<int64_t, kCategories> always{};
  for (const Item& item : items)
    if (item.life.always) always[static_cast<size_t>(program.tensor(item.buffer.tensor).category)] += item.buffer.bytes;
  const int64_t base = std::accumulate(always.begin(), always.end(), int64_t{0});
  plan.peak_live_bytes = -1;
  for (int c = 0; c < static_cast<int>(program.schedule.size()); ++c) {
    const size_t ops = program.segment(program.schedule[static_cast<size_t>(c)]).ops.size();
    std::vector<int64_t> change(ops + 1, 0);
    for (const Item& item : items) {
      if (item.life.always) continue;
      if (get(item.life.whole, c)) change[0] += item.buffer.bytes;
      for (const Part& part : item.life.parts) {
        if (!get(part.calls, c)) continue;
        change[static_cast<size_t>(part.first)] += item.buffer.bytes;
        if (part.last != kOpEnd) change[static_cast<size_t>(part.last) + 1] -= item.buffer.bytes;
      }
    }
    int64_t live = base;
    for (size_t o = 0; o < ops; ++o) {
      live += change[o];
      if (live <= plan.peak_live_bytes) continue;
      plan.peak_live_bytes = live;
      plan.peak_call = c;
      plan.peak_op = static_cast<int>(o);
    }
  }
}

bool alive_at(const Item& item, int call, int op) {
  if (item.life.always || get(item.life.whole, call)) return true;
  return std::any_of(item.life.parts.begin(), item.life.parts.end(),
                     [&](const Part& p) { return get(p.calls, call) && p.first <= op && op <= p.last; });
}

}  // namespace

MemoryPlan plan_memory(const Program& program) {
  MemoryPlan plan;
  std::vector<Item> items = collect(program);
  place(items, plan);
  find_peak(program, items, plan);
  plan.offsets.resize(program.tensors.size());
  for (const Item& item : items) {
    plan.buffers.push_back(item.buffer);
    auto& slots = plan.offsets[static_cast<size_t>(item.buffer.tensor)];
    slots.resize(std::max(slots.size(), static_cast<size_t>(item.buffer.slot) + 1), 0);
    slots[static_cast<size_t>(item.buffer.slot)] = item.buffer.offset;
    if (alive_at(item, plan.peak_call, plan.peak_op))
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
  for (const Item& item : collect(program)) {
    if (!alive_at(item, peak_call, peak_op)) continue;
    LiveBuffer buffer = item.buffer;
    buffer.offset = offset(program, buffer.tensor, buffer.slot);
    live.push_back(buffer);
  }
  std::stable_sort(live.begin(), live.end(),
                   [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes > b.bytes; });
  return live;
}

Status check_fits(const Program& program, const MemoryPlan& plan, int64_t capacity_bytes) {
  if (plan.arena_bytes <= capacity_bytes) return {};
  std::string top;
  const std::vector<LiveBuffer> live = plan.live_at_peak(program);
  for (size_t i = 0; i < std::min<size_t>(live.size(), 5); ++i)
    top += fmt::format("{}{} {}", i ? ", " : "", program.tensor(live[i].tensor).path,
                       format_bytes(static_cast<double>(live[i].bytes)));
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("the step needs {} and there are {}; largest at the peak: {}",
                          format_bytes(static_cast<double>(plan.arena_bytes)),
                          format_bytes(static_cast<double>(capacity_bytes)), top),
              "lower train.micro_batch_size or train.seq_length, or raise parallel.tensor_model_parallel_size or "
              "parallel.pipeline_model_parallel_size");
}

}  // namespace mbb::trainer
