// Busy time per stream and slice, then letters.
#include "analysis/report/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StepWindow;
using profiler::Trace;

constexpr std::array<char, profiler::kSpanKinds> kLetters = {'#', 't', 'c', 'e', 'p', 'd', 'o', '=', ' '};

using Slice = std::array<int64_t, profiler::kSpanKinds>;  // ns by kind

char letter(const Slice& slice, int64_t slice_ns) {
  int64_t busy = 0;
  for (const int64_t ns : slice) busy += ns;
  if (busy == 0) return ' ';
  if (2 * busy < slice_ns) return '.';
  return kLetters[static_cast<size_t>(std::max_element(slice.begin(), slice.end()) - slice.begin())];
}

// Adds a span to the slices it covers.
void paint(std::vector<Slice>& line, const Span& span, const StepWindow& window) {
  const int64_t length = window.end_ns - window.start_ns;
  const auto columns = static_cast<int64_t>(line.size());
  const int64_t from = std::max(span.start_ns, window.start_ns) - window.start_ns;
  const int64_t to = std::min(span.end_ns, window.end_ns) - window.start_ns;
  const auto edge = [&](int64_t column) { return column * length / columns; };
  for (int64_t column = from * columns / length; column < columns && edge(column) < to; ++column) {
    const int64_t overlap = std::min(to, edge(column + 1)) - std::max(from, edge(column));
    if (overlap > 0) line[static_cast<size_t>(column)][static_cast<size_t>(span.kind)] += overlap;
  }
}

}  // namespace

Result<std::string> timeline_text(const Trace& trace, const TimelineOptions& options) {
  std::set<int32_t> steps;
  for (const StepWindow& window : trace.steps) steps.insert(window.step);
  const int32_t step = options.step >= 0 || steps.empty() ? options.step : *steps.begin();
  if (!steps.contains(step))
    return fail(ErrorCode::kNotFound, fmt::format("step {} was not traced", step),
                steps.empty() ? "the trace has no step"
                              : fmt::format("traced steps are {} to {}", *steps.begin(), *steps.rbegin()));
  std::string out;
  const auto ranks = profiler::ranks(trace);
  int drawn = 0;
  for (const int32_t rank : ranks) {
    const auto window = std::find_if(trace.steps.begin(), trace.steps.end(),
                                     [&](const StepWindow& w) { return w.rank == rank && w.step == step; });
    if (window == trace.steps.end() || window->end_ns <= window->start_ns) continue;
    if (drawn++ == options.max_ranks) {
      out += fmt::format("... {} ranks in all\n", ranks.size());
      break;
    }
    std::map<std::string, std::vector<Slice>> lines;
    for (const Span& span : trace.spans) {
      if (trace.rank_of(span) != rank || span.kind == SpanKind::kHost) continue;
      if (span.end_ns <= window->start_ns || span.start_ns >= window->end_ns) continue;
      const profiler::Track& track = trace.tracks[span.track];
      auto& line = lines[fmt::format("{} {}", name(track.stream), trace.text(track.name))];
      line.resize(static_cast<size_t>(options.width));
      paint(line, span, *window);
    }
    const int64_t slice_ns = std::max<int64_t>(1, (window->end_ns - window->start_ns) / options.width);
    out += fmt::format("rank {}  step {}  {}\n", rank, step,
                       format_ns(static_cast<double>(window->end_ns - window->start_ns)));
    for (const auto& [stream, slices] : lines) {
      std::string bar;
      for (const Slice& slice : slices) bar += letter(slice, slice_ns);
      out += fmt::format("  {:<20}|{}|\n", stream.substr(0, 20), bar);
    }
  }
  return out + "# compute  t c e p d communication by kind  = copy  . less than half busy\n";
}

}  // namespace mbb::analysis
