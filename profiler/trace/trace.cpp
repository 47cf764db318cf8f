// Names of the trace model's kinds, the string table, and ordering of spans.
#include "profiler/trace/trace.h"

#include <algorithm>
#include <tuple>

namespace mbb::profiler {

namespace {
constexpr const char* kStreamNames[kStreamKinds] = {"host", "compute", "tp", "cp", "ep", "pp", "dp", "copy", "other"};
constexpr const char* kSpanNames[kSpanKinds] = {"compute", "comm.tp",    "comm.cp", "comm.ep", "comm.pp",
                                                "comm.dp", "comm.other", "copy",    "host"};
constexpr const char* kPhaseNames[kPhases] = {"none", "forward", "backward", "wgrad", "grad-sync", "optimizer", "data"};
}  // namespace

const char* name(StreamKind kind) {
  return kStreamNames[static_cast<size_t>(kind)];
}
const char* name(SpanKind kind) {
  return kSpanNames[static_cast<size_t>(kind)];
}
const char* name(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

StringId StringTable::intern(std::string_view text) {
  if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
  const auto id = static_cast<StringId>(strings_.size());
  ids_.emplace(text, id);
  strings_.emplace_back(text);
  return id;
}

void sort_spans(Trace& trace) {
  std::stable_sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.track, a.start_ns, a.end_ns) < std::tie(b.track, b.start_ns, b.end_ns);
  });
}

std::vector<int32_t> ranks(const Trace& trace) {
  std::vector<int32_t> all;
  for (const Track& track : trace.tracks) all.push_back(track.rank);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace mbb::profiler
