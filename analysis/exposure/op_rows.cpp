// Sums exclusive times into stored op rows.
#include "analysis/exposure/op_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace mbb::analysis {

namespace {

using Key = std::tuple<std::string, std::string, std::string>;  // rank class, path, stream

struct Sum {
  int64_t exclusive_ns = 0;
  int64_t calls = 0;
};

const char* stream_of(profiler::SpanKind kind) {
  using profiler::SpanKind;
  switch (kind) {
    case SpanKind::kCompute: return "compute";
    case SpanKind::kCommTp: return "tp";
    case SpanKind::kCommCp: return "cp";
    case SpanKind::kCommEp: return "ep";
    case SpanKind::kCommPp: return "pp";
    case SpanKind::kCommDp: return "dp";
    case SpanKind::kCommOther: return "comm";
    case SpanKind::kCopy: return "copy";
    case SpanKind::kHost: return "host";
  }
  return "";
}

// The phase of each op path, from the first span that names it.
std::map<std::string, std::string> phases_of(const profiler::Trace& trace) {
  std::vector<bool> seen(trace.strings.size(), false);
  std::map<std::string, std::string> phases;
  for (const profiler::Span& span : trace.spans) {
    const profiler::StringId op = span.op != 0 ? span.op : span.name;
    if (seen[op]) continue;
    seen[op] = true;
    if (span.phase != profiler::Phase::kNone) phases.emplace(trace.text(op), name(span.phase));
  }
  return phases;
}

}  // namespace

void fill_op_rows(baselines::Launch& launch, const profiler::Trace& trace, const std::vector<StepTimes>& times,
                  const std::function<std::string(int32_t rank)>& rank_class) {
  std::map<Key, Sum> sums;
  std::map<std::string, std::set<int32_t>> ranks_of;
  std::set<int32_t> steps;
  for (const StepTimes& one : times) {
    const std::string of = rank_class(one.breakdown.rank);
    ranks_of[of].insert(one.breakdown.rank);
    steps.insert(one.breakdown.step);
    for (const OpTime& op : one.ops) {
      Sum& sum = sums[{of, trace.text(op.op), stream_of(op.kind)}];
      sum.exclusive_ns += op.exclusive_ns;
      sum.calls += op.spans;
    }
    sums[{of, std::string(kIdlePath), ""}].exclusive_ns += one.breakdown.idle_ns;
  }
  const std::map<std::string, std::string> phases = phases_of(trace);
  launch.ops.clear();
  for (const auto& [key, sum] : sums) {
    const auto& [of, path, stream] = key;
    const auto ranks = static_cast<int64_t>(ranks_of[of].size());
    baselines::OpRow row;
    row.path = path;
    row.rank_class = of;
    row.stream = stream;
    if (path == kIdlePath) row.kind = "idle";
    if (const auto phase = phases.find(path); phase != phases.end()) row.phase = phase->second;
    row.calls = sum.calls / ranks;
    row.total_ns = (sum.exclusive_ns + ranks / 2) / ranks;
    launch.ops.push_back(std::move(row));
  }
  std::erase_if(launch.counts, [](const baselines::NamedCount& count) { return count.name == kOpStepsCount; });
  launch.counts.push_back({std::string(kOpStepsCount), static_cast<int64_t>(steps.size())});
}

int64_t op_steps(const baselines::Launch& launch) {
  for (const baselines::NamedCount& count : launch.counts)
    if (count.name == kOpStepsCount) return count.count;
  return 0;
}

}  // namespace mbb::analysis
