// Sums by op name and their differences.
#include "viewer/timeline/diff.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace mbb::viewer {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StringId;
using profiler::Trace;

struct Sum {
  double ns = 0;
  int calls = 0;
  std::vector<bool> ranks;  // by place in the sorted list of ranks
  double a_rank_ns() const {
    return ns / static_cast<double>(std::max<std::ptrdiff_t>(1, std::count(ranks.begin(), ranks.end(), true)));
  }
};

// By string id, empty where nothing ran; ops that several ranks run count as their mean.
std::vector<Sum> sums(const Trace& trace, std::int32_t step) {
  const std::vector<std::int32_t> all_ranks = profiler::ranks(trace);
  std::vector<std::size_t> place(trace.tracks.size());
  for (std::size_t i = 0; i < place.size(); ++i) {
    place[i] = static_cast<std::size_t>(std::lower_bound(all_ranks.begin(), all_ranks.end(), trace.tracks[i].rank) -
                                        all_ranks.begin());
  }
  std::vector<Sum> out(trace.strings.size());
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kHost || span.track >= trace.tracks.size() || span.end_ns < span.start_ns) continue;
    if (step != profiler::kNoStep && span.step != step) continue;
    const StringId id = span.op != 0 ? span.op : span.name;
    if (id >= out.size()) continue;
    Sum& sum = out[id];
    sum.ns += static_cast<double>(span.end_ns) - static_cast<double>(span.start_ns);
    ++sum.calls;
    if (sum.ranks.empty()) sum.ranks.resize(all_ranks.size());
    sum.ranks[place[span.track]] = true;
  }
  return out;
}

DeltaMark mark_of(double here, double there, double least_share, double least_ns) {
  if (there <= 0) return DeltaMark::kOnlyHere;
  const double delta = here - there;
  if (std::fabs(delta) < least_ns || std::fabs(delta) < least_share * there) return DeltaMark::kSame;
  return delta > 0 ? DeltaMark::kSlower : DeltaMark::kFaster;
}

}  // namespace

TraceDiff diff_traces(const Trace& a, std::int32_t step_a, const Trace& b, std::int32_t step_b, double least_share) {
  TraceDiff out;
  std::unordered_map<std::string, OpDelta> by_name;
  double total = 0;
  const std::vector<Sum> sums_a = sums(a, step_a);
  const std::vector<Sum> sums_b = sums(b, step_b);
  for (std::size_t id = 0; id < sums_a.size(); ++id) {
    if (sums_a[id].calls == 0) continue;
    OpDelta& delta = by_name[a.strings[id]];
    delta.a_ns = sums_a[id].a_rank_ns();
    delta.a_calls = sums_a[id].calls;
    total += delta.a_ns;
  }
  for (std::size_t id = 0; id < sums_b.size(); ++id) {
    if (sums_b[id].calls == 0) continue;
    OpDelta& delta = by_name[b.strings[id]];
    delta.b_ns = sums_b[id].a_rank_ns();
    delta.b_calls = sums_b[id].calls;
  }
  const double least_ns = total * 1e-4;
  out.marks_a.assign(a.strings.size(), DeltaMark::kSame);
  out.marks_b.assign(b.strings.size(), DeltaMark::kSame);
  for (std::size_t id = 0; id < sums_a.size(); ++id) {
    if (sums_a[id].calls == 0) continue;
    const OpDelta& delta = by_name[a.strings[id]];
    out.marks_a[id] = mark_of(delta.a_ns, delta.b_ns, least_share, least_ns);
  }
  for (std::size_t id = 0; id < sums_b.size(); ++id) {
    if (sums_b[id].calls == 0) continue;
    const OpDelta& delta = by_name[b.strings[id]];
    out.marks_b[id] = mark_of(delta.b_ns, delta.a_ns, least_share, least_ns);
  }
  for (auto& [op, delta] : by_name) {
    delta.op = op;
    out.ops.push_back(std::move(delta));
  }
  std::sort(out.ops.begin(), out.ops.end(), [](const OpDelta& x, const OpDelta& y) {
    const double dx = std::fabs(x.delta_ns());
    const double dy = std::fabs(y.delta_ns());
    return dx != dy ? dx > dy : x.op < y.op;
  });
  return out;
}

}  // namespace mbb::viewer
