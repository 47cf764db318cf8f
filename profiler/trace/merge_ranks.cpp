// Strings and tracks are numbered anew, part by part.
#include "profiler/trace/merge_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

namespace mbb::profiler {

Result<Trace> merge_ranks(std::span<const RankTrace> parts, CollectiveIds ids) {
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const RankTrace& part : parts) zero = std::min(zero, part.zero_ns);
  Trace out;
  StringTable strings;
  std::set<int32_t> taken;
  uint64_t part_index = 0;
  for (const RankTrace& part : parts) {
    const Trace& trace = *part.trace;
    for (const int32_t rank : ranks(trace))
      if (!taken.insert(rank).second)
        return fail(ErrorCode::kMismatch, fmt::format("two traces are of rank {}", rank), "give one of them");
    std::vector<StringId> text;
    for (const std::string& one : trace.strings) text.push_back(strings.intern(one));
    const auto first_track = static_cast<uint32_t>(out.tracks.size());
    for (Track track : trace.tracks) {
      track.name = text[track.name];
      out.tracks.push_back(track);
    }
    const int64_t shift = part.zero_ns - zero;
    for (StepWindow window : trace.steps) {
      window.start_ns += shift;
      window.end_ns += shift;
      out.steps.push_back(window);
    }
    for (Span span : trace.spans) {
      span.start_ns += shift;
      span.end_ns += shift;
      span.track += first_track;
      span.name = text[span.name];
      span.op = text[span.op];
      if (span.collective != 0 && ids == CollectiveIds::kOfOnePart) span.collective += part_index << 40U;
      out.spans.push_back(span);
    }
    out.dropped_spans += trace.dropped_spans;
    ++part_index;
  }
  out.strings = strings.strings();
  sort_spans(out);
  return out;
}

}  // namespace mbb::profiler
