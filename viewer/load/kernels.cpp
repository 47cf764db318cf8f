// Grouping spans by name.
#include "viewer/load/kernels.h"

#include <algorithm>
#include <map>
#include <set>

#include "analysis/report/op_groups.h"
#include "analysis/stats/stats.h"

namespace mbb::viewer {
namespace {

using profiler::Span;
using profiler::Trace;

struct Gathered {
  std::vector<double> ns;
  std::map<profiler::StringId, double> by_op;
  profiler::SpanKind kind = profiler::SpanKind::kCompute;
};

KernelRow row_of(const Trace& trace, profiler::StringId name, Gathered& gathered) {
  KernelRow row;
  row.name = trace.strings[name];
  row.kind = gathered.kind;
  row.calls = static_cast<std::int64_t>(gathered.ns.size());
  for (const double ns : gathered.ns) row.total_ns += ns;
  std::sort(gathered.ns.begin(), gathered.ns.end());
  row.p50_ns = analysis::quantile(gathered.ns, 0.5);
  row.p95_ns = analysis::quantile(gathered.ns, 0.95);
  row.max_ns = gathered.ns.back();
  std::map<std::string, double> ops;
  for (const auto& [op, ns] : gathered.by_op) ops[analysis::grouped_path(trace.strings[op])] += ns;
  for (const auto& [op, ns] : ops) row.ops.push_back(op);
  std::stable_sort(row.ops.begin(), row.ops.end(),
                   [&](const std::string& a, const std::string& b) { return ops[a] > ops[b]; });
  return row;
}

}  // namespace

Result<KernelTable> kernel_table(const Trace& trace, const std::atomic<bool>& cancelled) {
  std::vector<Gathered> by_name(trace.strings.size());
  std::size_t seen = 0;
  for (const Span& span : trace.spans) {
    if (++seen % 65536 == 0 && cancelled.load()) return fail(ErrorCode::kCancelled, "grouping kernels");
    if (span.kind == profiler::SpanKind::kHost || span.end_ns < span.start_ns) continue;
    if (span.name >= by_name.size() || span.op >= by_name.size()) continue;
    Gathered& gathered = by_name[span.name];
    // In doubles: a damaged trace may name instants whose difference no integer holds.
    const double ns = static_cast<double>(span.end_ns) - static_cast<double>(span.start_ns);
    gathered.ns.push_back(ns);
    gathered.kind = span.kind;
    if (span.op != 0 && span.op != span.name) gathered.by_op[span.op] += ns;
  }
  KernelTable table;
  std::set<std::pair<std::int32_t, std::int32_t>> steps;
  for (const profiler::StepWindow& step : trace.steps) steps.emplace(step.rank, step.step);
  table.share_of = static_cast<double>(std::max<std::size_t>(1, steps.size()));
  for (profiler::StringId name = 0; name < by_name.size(); ++name) {
    if (!by_name[name].ns.empty()) table.rows.push_back(row_of(trace, name, by_name[name]));
  }
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [](const KernelRow& a, const KernelRow& b) { return a.total_ns > b.total_ns; });
  return table;
}

}  // namespace mbb::viewer
