// Counting what a step's ops do, pairing ops of two programs, and saying what differs.
#include "trainer/passes/effects.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "profiler/base/text.h"
#include "trainer/program/attr_fields.h"
#include "trainer/program/call_counts.h"
#include "trainer/program/op_volume.h"

namespace mbb::trainer {
namespace {

// Of a program without a schedule yet: every segment runs in every micro-batch, or once.
CallCounts calls_of(const Program& program) {
  if (!program.schedule.empty()) return count_calls(program);
  CallCounts calls(program.segments.size());
  for (size_t s = 0; s < program.segments.size(); ++s) {
    std::array<int64_t, 4>& of = calls[s];
    if (!is_micro_batched(program.segments[s].kind)) {
      of[0] = 1;
    } else if (program.micro_batches == 1) {
      of[3] = 1;
    } else {
      of[1] = of[2] = 1;
      of[0] = program.micro_batches - 2;
    }
  }
  return calls;
}

void mix(uint64_t& hash, uint64_t value) {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15ULL;
  hash ^= hash >> 29;
}
uint64_t hash_of(std::string_view text) {
  return std::hash<std::string_view>{}(text);
}

struct AttrMix {
  uint64_t& hash;
  template <typename T>
  void operator()(const char*, const T& value) {
    add(value);
  }
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void add(T value) {
    if constexpr (std::is_floating_point_v<T>)
      mix(hash, std::hash<double>{}(static_cast<double>(value)));
    else
      mix(hash, static_cast<uint64_t>(value));
  }
  void add(std::string_view value) { mix(hash, hash_of(value)); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(const std::vector<T>& values) {
    for (T value : values) add(value);
  }
  void add(const Positions& value) {
    add(value.sequence);
    add(value.run);
    add(value.starts);
  }
  void add(const Shape& value) {
    for (int i = 0; i < value.rank(); ++i) add(value[i]);
  }
  void add(const std::vector<BucketRange>& ranges) {
    for (const BucketRange& range : ranges) {
      add(range.path);
      add(range.offset);
      add(range.count);
    }
  }
};

uint64_t mark_of(const Tensor& t) {
  uint64_t hash = hash_of(t.path);
  AttrMix attrs{hash};
  attrs.add(t.dtype);
  attrs.add(t.shape);
  attrs.add(t.space);
  attrs.add(t.left_out);
  return hash;
}

// Of those that stay in place, the fewest that have to leave their order: all but a longest rising sequence.
int64_t out_of_order(const std::vector<size_t>& places) {
  std::vector<size_t> ends;  // smallest last place of a rising sequence of each length
  for (const size_t place : places) {
    const auto at = std::lower_bound(ends.begin(), ends.end(), place);
    if (at == ends.end())
      ends.push_back(place);
    else
      *at = place;
  }
  return static_cast<int64_t>(places.size() - ends.size());
}

}  // namespace

PassFacts pass_facts(const Program& program) {
  PassFacts facts;
  facts.pieces = static_cast<int64_t>(program.schedule.size());
  const CallCounts calls = calls_of(program);
  std::vector<char> written(program.tensors.size()), kept(program.tensors.size());
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const bool forward = segment.kind == SegmentKind::kForward, batched = is_micro_batched(segment.kind);
    for (const Op& op : segment.ops) {
      if (batched)
        for (const TensorId id : op.in)
          if (!forward && written[static_cast<size_t>(id)]) kept[static_cast<size_t>(id)] = 1;
      for (const TensorId id : op.out)
        if (forward) written[static_cast<size_t>(id)] = 1;
      const int64_t times = runs_of(segment, calls[s], op);
      facts.launches += times;
      (!batched ? facts.once_launches : forward ? facts.forward_launches : facts.backward_launches) += times;
      if (op.stream != Stream::kCompute) facts.side_ops += times;
      const OpView view{program, op};
      facts.flops += op_flops(view) * static_cast<double>(times);
      facts.bytes += op_bytes(view) * static_cast<double>(times);
      if (!op.kind->communicates) continue;
      facts.comm_calls += times;
      if (const CommVolume volume = comm_volume(view); volume.op != CommOp::kRecv)
        facts.wire_bytes += static_cast<double>(volume.wire_bytes) * static_cast<double>(times);
    }
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const Tensor& t = program.tensors[i];
    const bool between_steps = t.scope == Scope::kPersistent || t.category == Category::kMainGrad;
    if (between_steps && t.view_of == kNoTensor && t.space == Space::kDevice) facts.held_bytes += t.bytes();
    if (!kept[i] || t.scope == Scope::kStep || t.scope == Scope::kPersistent) continue;
    (t.space == Space::kHost ? facts.host_bytes : facts.kept_bytes) += t.bytes();
  }
  return facts;
}

namespace {

// later + (a - b), fact by fact.
PassFacts shifted(const PassFacts& later, const PassFacts& a, const PassFacts& b) {
  PassFacts out = later;
  for (const auto fact :
       {&PassFacts::launches, &PassFacts::forward_launches, &PassFacts::backward_launches, &PassFacts::once_launches,
        &PassFacts::side_ops, &PassFacts::comm_calls, &PassFacts::kept_bytes, &PassFacts::host_bytes,
        &PassFacts::held_bytes, &PassFacts::pieces, &PassFacts::arena_bytes})
    out.*fact += a.*fact - b.*fact;
  for (const auto fact : {&PassFacts::wire_bytes, &PassFacts::flops, &PassFacts::bytes}) out.*fact += a.*fact - b.*fact;
  return out;
}

}  // namespace

void end_at(std::vector<PassEffect>& effects, const PassFacts& whole) {
  PassFacts next = whole;
  for (auto effect = effects.rbegin(); effect != effects.rend(); ++effect) {
    const PassFacts before = shifted(next, effect->before, effect->after);
    effect->after = next;
    effect->before = next = before;
  }
}

std::vector<OpMark> op_marks(const Program& program) {
  std::vector<uint64_t> tensors;
  tensors.reserve(program.tensors.size());
  for (const Tensor& t : program.tensors) tensors.push_back(mark_of(t));
  std::vector<OpMark> marks;
  for (const Segment& segment : program.segments) {
    const uint64_t segment_name = hash_of(segment.name);
    for (const Op& op : segment.ops) {
      OpMark mark{hash_of(op.path), hash_of(op.kind->name), segment_name};
      for (const std::vector<TensorId>* ids : {&op.in, &op.out}) {
        mix(mark.content, ids->size());
        for (const TensorId id : *ids) mix(mark.content, tensors[static_cast<size_t>(id)]);
      }
      std::visit([&](const auto& a) { attr_fields(a, AttrMix{mark.content}); }, op.attrs);
      mix(mark.place, static_cast<uint64_t>(op.stream));
      mix(mark.place, static_cast<uint64_t>(op.when));
      marks.push_back(mark);
    }
  }
  return marks;
}

OpEdits op_edits(const std::vector<OpMark>& before, const std::vector<OpMark>& after) {
  std::vector<std::pair<uint64_t, size_t>> by_path;  // of `after`
  by_path.reserve(after.size());
  for (size_t i = 0; i < after.size(); ++i) by_path.emplace_back(after[i].path, i);
  std::sort(by_path.begin(), by_path.end());
  std::vector<size_t> taken(after.size(), 0);  // at the first of a path in by_path: how many of it are paired
  OpEdits edits;
  std::vector<size_t> places;
  size_t paired = 0;
  for (const OpMark& mark : before) {
    const auto first = static_cast<size_t>(
        std::lower_bound(by_path.begin(), by_path.end(), std::pair{mark.path, size_t{0}}) - by_path.begin());
    const size_t next = first == after.size() ? first : first + taken[first];
    if (next == after.size() || by_path[next].first != mark.path) {
      ++edits.gone;
      continue;
    }
    ++taken[first];
    const size_t at = by_path[next].second;
    ++paired;
    edits.changed += after[at].content != mark.content;
    edits.moved += after[at].place != mark.place;
    if (after[at].place == mark.place) places.push_back(at);
  }
  edits.added = static_cast<int64_t>(after.size() - paired);
  edits.reordered = out_of_order(places);
  return edits;
}

namespace {

// Where in the step their number differs: "forward -4, backward +8".
std::string where_launches(const PassFacts& a, const PassFacts& b) {
  std::string text;
  const auto add = [&](const char* where, int64_t more) {
    if (more != 0) text += fmt::format("{}{} {:+}", text.empty() ? "" : ", ", where, more);
  };
  add("forward", b.forward_launches - a.forward_launches);
  add("backward", b.backward_launches - a.backward_launches);
  add("once", b.once_launches - a.once_launches);
  return text;
}

}  // namespace

std::vector<std::string> changes(const PassEffect& effect) {
  std::vector<std::string> said;
  const PassFacts &a = effect.before, &b = effect.after;
  const auto count = [&](const char* what, int64_t x, int64_t y) {
    if (x != y) said.push_back(fmt::format("{} {} → {}", what, x, y));
  };
  const auto amount = [&](const char* what, double x, double y, const char* unit) {
    if (x == y) return;
    const auto text = [&](double v) { return *unit == 'B' ? format_bytes_decimal(v) : format_count(v, unit); };
    // Where three digits do not show it, the difference does.
    const std::string from = text(x), to = text(y);
    said.push_back(from != to ? fmt::format("{} {} → {}", what, from, to)
                              : fmt::format("{} {} {} {}", what, from, y > x ? "+" : "-", text(std::abs(y - x))));
  };
  const auto bytes = [&](const char* what, int64_t x, int64_t y) {
    amount(what, static_cast<double>(x), static_cast<double>(y), "B");
  };
  count("launches", a.launches, b.launches);
  if (a.launches != b.launches) said.back() += " (" + where_launches(a, b) + ")";
  amount("FLOPs", a.flops, b.flops, "F");
  amount("bytes", a.bytes, b.bytes, "B");
  count("comm calls", a.comm_calls, b.comm_calls);
  amount("sent", a.wire_bytes, b.wire_bytes, "B");
  count("beside compute", a.side_ops, b.side_ops);
  count("calls of segments", a.pieces, b.pieces);
  bytes("kept a micro-batch", a.kept_bytes, b.kept_bytes);
  bytes("on the host a micro-batch", a.host_bytes, b.host_bytes);
  bytes("held", a.held_bytes, b.held_bytes);
  bytes("arena", a.arena_bytes, b.arena_bytes);
  const OpEdits& e = effect.edits;
  const auto ops = [&](int64_t n, const char* what) {
    if (n != 0) said.push_back(fmt::format("{} op{} {}", n, n == 1 ? "" : "s", what));
  };
  if (e.added == e.gone) ops(e.added, "of other names");  // else the counts say it
  ops(e.changed, "changed");
  ops(e.moved, "moved");
  ops(e.reordered, "in another order");
  return said;
}

}  // namespace mbb::trainer
