// Arrivals by collective, then one pass over its parts.
#include "analysis/exposure/collectives.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analysis/exposure/gemm_slowdown.h"
#include "analysis/exposure/intervals.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::Trace;

// One rank's part of a collective: its kernels may be several.
struct Part {
  int64_t start_ns = 0, end_ns = 0;
  SpanKind kind = SpanKind::kCommOther;
  profiler::StringId op = 0;
};

using RankOf = std::map<int32_t, Part>;

std::vector<RankOf> parts_of(const Trace& trace) {
  std::map<uint64_t, RankOf> with_id;
  std::vector<RankOf> alone;
  for (const Span& span : trace.spans) {
    if (!is_comm(span.kind) || span.step == profiler::kNoStep) continue;
    const Part part{span.start_ns, span.end_ns, span.kind, span.op != 0 ? span.op : span.name};
    const int32_t rank = trace.rank_of(span);
    if (span.collective == 0) {
      alone.push_back({{rank, part}});
      continue;
    }
    const auto [entry, added] = with_id[span.collective].try_emplace(rank, part);
    if (added) continue;
    entry->second.start_ns = std::min(entry->second.start_ns, part.start_ns);
    entry->second.end_ns = std::max(entry->second.end_ns, part.end_ns);
  }
  for (auto& [id, members] : with_id) alone.push_back(std::move(members));
  return alone;
}

std::map<int32_t, Intervals> compute_of(const Trace& trace) {
  std::map<int32_t, std::vector<TimeInterval>> spans;
  for (const Span& span : trace.spans)
    if (span.kind == SpanKind::kCompute) spans[trace.rank_of(span)].push_back({span.start_ns, span.end_ns});
  std::map<int32_t, Intervals> compute;
  for (auto& [rank, any] : spans) compute[rank] = unite_all(std::move(any));
  return compute;
}

}  // namespace

std::vector<CollectiveRow> collectives(const Trace& trace) {
  const std::map<int32_t, Intervals> compute = compute_of(trace);
  std::map<std::pair<std::string, SpanKind>, CollectiveRow> rows;
  for (const RankOf& members : parts_of(trace)) {
    int64_t last = INT64_MIN;
    for (const auto& [rank, part] : members) last = std::max(last, part.start_ns);
    const CollectiveRow* counted = nullptr;
    for (const auto& [rank, part] : members) {
      const std::string site = site_of(trace.text(part.op));
      CollectiveRow& row = rows[{site, part.kind}];
      row.site = site, row.kind = part.kind;
      if (&row != counted) ++row.calls;
      counted = &row;
      row.members = std::max(row.members, static_cast<int64_t>(members.size()));
      ++row.parts;
      // Whose send was over before its receiver came has not waited for it.
      const int64_t arrived = std::min(last, part.end_ns), wait = arrived - part.start_ns;
      row.wait_ns += static_cast<double>(wait);
      row.largest_wait_ns = std::max(row.largest_wait_ns, wait);
      row.transfer_ns += static_cast<double>(part.end_ns - arrived);
      if (const auto own = compute.find(rank); own != compute.end())
        row.hidden_ns += static_cast<double>(inside_ns(own->second, {arrived, part.end_ns}));
    }
  }
  std::vector<CollectiveRow> all;
  for (auto& [key, row] : rows) all.push_back(std::move(row));
  std::stable_sort(all.begin(), all.end(), [](const CollectiveRow& a, const CollectiveRow& b) {
    return a.wait_ns + a.transfer_ns > b.wait_ns + b.transfer_ns;
  });
  for (CollectiveRow& row : all)
    for (double* sum : {&row.wait_ns, &row.transfer_ns, &row.hidden_ns}) *sum /= static_cast<double>(row.parts);
  return all;
}

}  // namespace mbb::analysis
