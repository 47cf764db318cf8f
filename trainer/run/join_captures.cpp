// Traces and attributions travel as bytes.
#include "trainer/run/join_captures.h"

#include <algorithm>
#include <map>
#include <utility>

#include "profiler/base/text.h"
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {
namespace {

struct Times {
  int64_t device_ns = 0, device_events = 0, unattributed_ns = 0, unattributed_events = 0;
};

void add(profiler::Attribution& to, const Times& times) {
  to.device_ns += times.device_ns;
  to.device_events += times.device_events;
  to.unattributed_ns += times.unattributed_ns;
  to.unattributed_events += times.unattributed_events;
}

// "name\tns\n" of each.
std::string lines_of(const std::vector<std::pair<std::string, int64_t>>& names) {
  std::string lines;
  for (const auto& [name, ns] : names) lines += name + '\t' + std::to_string(ns) + '\n';
  return lines;
}

Status add_lines(std::map<std::string, int64_t>& to, std::string_view lines) {
  for (const std::string_view line : split(lines, '\n')) {
    if (line.empty()) continue;
    const size_t tab = std::min(line.rfind('\t'), line.size());
    const std::optional<int64_t> ns = parse_int(line.substr(std::min(tab + 1, line.size())));
    if (!ns) return fail(ErrorCode::kBadFile, "a rank's kernels without an op came garbled: " + printable(line));
    to[std::string(line.substr(0, tab))] += *ns;
  }
  return {};
}

}  // namespace

Result<JoinedCapture> join_captures(Communicator& everyone, const profiler::DeviceTrace& mine) {
  const profiler::Attribution& a = mine.attribution;
  MB_ASSIGN(const auto traces, gather_at_first(everyone, profiler::bytes_of_trace(mine.trace)));
  MB_ASSIGN(const auto times,
            gather_at_first(everyone, bytes_of_values<Times>(
                                          {{a.device_ns, a.device_events, a.unattributed_ns, a.unattributed_events}})));
  MB_ASSIGN(const auto names, gather_at_first(everyone, lines_of(a.unattributed_by_name)));
  JoinedCapture joined;
  if (everyone.rank() != 0) return joined;
  std::vector<profiler::Trace> parts;
  std::map<std::string, int64_t> by_name;
  for (size_t r = 0; r < traces.size(); ++r) {
    MB_ASSIGN(profiler::Trace part, profiler::trace_of_bytes(traces[r]));
    parts.push_back(std::move(part));
    for (const Times& of_rank : values_of_bytes<Times>(times[r])) add(joined.device.attribution, of_rank);
    MB_TRY(add_lines(by_name, names[r]));
  }
  MB_ASSIGN(profiler::AlignedRanks aligned, profiler::align_ranks(std::move(parts)));
  joined.device.trace = std::move(aligned.trace);
  joined.alignment = std::move(aligned.alignment);
  auto& list = joined.device.attribution.unattributed_by_name;
  list.assign(by_name.begin(), by_name.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  return joined;
}

}  // namespace mbb::trainer
