// Kernels become calls, calls are sorted by how much of them a collective ran beside.
#include "analysis/exposure/gemm_slowdown.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "analysis/exposure/intervals.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::Trace;

// One call of an op: its kernels, one after another on a track.
struct Call {
  int64_t ns = 0, beside_ns = 0;
};

struct Mean {
  int64_t calls = 0;
  double sum_ns = 0;
  void add(int64_t ns) { ++calls, sum_ns += static_cast<double>(ns); }
  double ns() const { return calls > 0 ? sum_ns / static_cast<double>(calls) : GemmSlowdown::kUnknown; }
};
struct Site {
  Mean alone, partly, beside;
};

std::map<int32_t, Intervals> collectives_of(const Trace& trace) {
  std::map<int32_t, std::vector<TimeInterval>> spans;
  for (const Span& span : trace.spans)
    if (is_comm(span.kind)) spans[trace.rank_of(span)].push_back({span.start_ns, span.end_ns});
  std::map<int32_t, Intervals> united;
  for (auto& [rank, any] : spans) united[rank] = unite_all(std::move(any));
  return united;
}

std::map<std::string, Site> sites_of(const Trace& trace, const std::set<std::string>& gemms) {
  std::vector<bool> is_gemm;
  for (const std::string& text : trace.strings) is_gemm.push_back(gemms.contains(text));
  std::set<std::pair<int32_t, int32_t>> steps;
  for (const profiler::StepWindow& window : trace.steps) steps.emplace(window.rank, window.step);
  const std::map<int32_t, Intervals> collectives = collectives_of(trace);
  std::map<std::tuple<int32_t, int32_t, int32_t, profiler::StringId>, Call> calls;  // rank, step, micro-batch, op
  for (const Span& span : trace.spans) {
    const profiler::StringId op = span.op != 0 ? span.op : span.name;
    const int32_t rank = trace.rank_of(span);
    if (span.kind != SpanKind::kCompute || !is_gemm[op] || !steps.contains({rank, span.step})) continue;
    Call& call = calls[{rank, span.step, span.micro_batch, op}];
    call.ns += span.end_ns - span.start_ns;
    if (const auto own = collectives.find(rank); own != collectives.end())
      call.beside_ns += inside_ns(own->second, {span.start_ns, span.end_ns});
  }
  std::map<std::string, Site> sites;
  for (const auto& [key, call] : calls) {
    if (call.ns == 0) continue;
    Site& site = sites[site_of(trace.text(std::get<3>(key)))];
    (2 * call.beside_ns > call.ns    ? site.beside
     : 10 * call.beside_ns < call.ns ? site.alone
                                     : site.partly)
        .add(call.ns);
  }
  return sites;
}

GemmSlowdown row_of(std::string name, const Site& here, const Site& there, double rank_steps) {
  GemmSlowdown row{.site = std::move(name)};
  row.alone = here.alone.calls, row.partly = here.partly.calls, row.beside = here.beside.calls;
  row.elsewhere = (row.alone == 0 && there.alone.calls > 0) || (row.beside == 0 && there.beside.calls > 0);
  row.alone_ns = row.alone > 0 ? here.alone.ns() : there.alone.ns();
  row.beside_ns = row.beside > 0 ? here.beside.ns() : there.beside.ns();
  row.slowdown = row.beside_ns / row.alone_ns - 1;
  if (const auto hidden = static_cast<double>(row.partly + row.beside); hidden > 0)
    row.cost_ns = (here.partly.sum_ns + here.beside.sum_ns - hidden * row.alone_ns) / rank_steps;
  return row;
}

}  // namespace

std::string site_of(std::string_view path) {
  std::string site;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (at > 0) site += '.';
    site += number ? "*" : std::string(part);
    at = end + 1;
  }
  return site;
}

std::set<std::string> gemm_paths(const baselines::Launch& launch) {
  std::set<std::string> paths;
  for (const baselines::OpRow& op : launch.ops)
    if (op.kind.find("gemm") != std::string::npos) paths.insert(op.path);
  return paths;
}

std::vector<GemmSlowdown> gemm_slowdowns(const Trace& trace, const std::set<std::string>& gemms, const Trace* other) {
  const auto rank_steps = static_cast<double>(std::max<size_t>(1, trace.steps.size()));
  auto elsewhere = other != nullptr ? sites_of(*other, gemms) : std::map<std::string, Site>{};
  std::vector<GemmSlowdown> rows;
  for (const auto& [name, site] : sites_of(trace, gemms))
    rows.push_back(row_of(name, site, elsewhere[name], rank_steps));
  std::stable_sort(rows.begin(), rows.end(), [](const GemmSlowdown& a, const GemmSlowdown& b) {
    const auto known = [](double ns) { return std::isnan(ns) ? -std::numeric_limits<double>::infinity() : ns; };
    return known(a.cost_ns) > known(b.cost_ns);
  });
  return rows;
}

}  // namespace mbb::analysis
