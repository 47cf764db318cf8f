// Lanes of rectangles. Spans too thin to see are drawn together with their neighbours, so that a page stays small.
#include "analysis/report/timeline_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "analysis/report/html.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StepWindow;
using profiler::Trace;

constexpr double kWidth = 1200, kLeft = 130, kLane = 22, kTop = 30;
constexpr double kThin = 0.6;  // of the picture's units

Result<StepWindow> window_of(const TimelineSide& side, int32_t rank) {
  std::optional<StepWindow> found;
  for (const StepWindow& w : side.trace->steps)
    if (w.rank == rank && (side.step < 0 || w.step == side.step) && w.end_ns > w.start_ns &&
        (!found || w.step < found->step))
      found = w;
  if (found) return *found;
  return fail(ErrorCode::kNotFound, fmt::format("{}: rank {} has no traced step", side.label, rank));
}

bool is_inside(const Span& span, const StepWindow& window, const Trace& trace) {
  return trace.rank_of(span) == window.rank && span.kind != SpanKind::kHost && span.end_ns > window.start_ns &&
         span.start_ns < window.end_ns;
}

const std::string& op_name(const Trace& trace, const Span& span) {
  return trace.text(span.op != 0 ? span.op : span.name);
}

std::map<std::string, int64_t> times_of(const Trace& trace, const StepWindow& window) {
  std::map<std::string, int64_t> times;
  for (const Span& span : trace.spans)
    if (is_inside(span, window, trace)) times[op_name(trace, span)] += span.end_ns - span.start_ns;
  return times;
}

const char* fill_of(SpanKind kind) {
  if (kind == SpanKind::kCompute) return "compute";
  return profiler::is_comm(kind) ? "comm" : kind == SpanKind::kCopy ? "copy" : "host";
}

// Why an op is marked, as a sign; empty: it is not.
std::string mark_of(const OpPair& op, int64_t step_ns) {
  if (op.before_ns == 0 || op.after_ns == 0) {
    if (1000 * std::max(op.before_ns, op.after_ns) < step_ns) return "";
    return op.before_ns == 0 ? "+" : "−";
  }
  const auto change = static_cast<double>(op.change_ns());
  if (std::abs(change) < 0.1 * static_cast<double>(op.before_ns) ||
      std::abs(change) < 0.01 * static_cast<double>(step_ns))
    return "";
  return change > 0 ? "▲" : "▼";
}

struct Drawing {
  const Trace& trace;
  StepWindow window;
  double ns_per_unit;
  double top;
  const std::map<std::string, std::string>& marks;
  const std::string& id;
};

struct Box {
  double x = 0, width = 0;
  SpanKind kind = SpanKind::kCompute;
  std::string title, mark, label;
};

std::string rect(const Drawing& d, const Box& box, double y) {
  const char* fill = fill_of(box.kind);
  std::string out = fmt::format(
      "<g><title>{}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" "
      "fill=\"var(--{})\"{}/>",
      html_escape(box.title), box.x, y, std::max(box.width, 0.3), kLane - 4, fill,
      box.mark.empty() ? "" : " stroke=\"var(--mark)\" stroke-width=\"2\"");
  if (profiler::is_comm(box.kind))  // hatched, so that colour does not speak alone
    out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"url(#hatch{})\"/>", box.x,
                       y, std::max(box.width, 0.3), kLane - 4, d.id);
  const std::string text = box.mark.empty() ? box.label : box.mark + " " + box.label;
  if (box.width > 6.5 * static_cast<double>(display_width(text)) + 4)
    out += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\">{}</text>", box.x + 2, y + 13, html_escape(text));
  else if (!box.mark.empty())
    out += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\">{}</text>", box.x, y - 1, box.mark);
  return out + "</g>\n";
}

// Boxes of a lane, thin neighbours of one kind as one.
std::vector<Box> boxes_of(const Drawing& d, std::vector<const Span*> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) { return a->start_ns < b->start_ns; });
  std::vector<Box> boxes;
  size_t together = 1;
  for (const Span* span : spans) {
    const int64_t from = std::max(span->start_ns, d.window.start_ns), to = std::min(span->end_ns, d.window.end_ns);
    const std::string& op = op_name(d.trace, *span);
    const auto mark = d.marks.find(op);
    Box box{kLeft + static_cast<double>(from - d.window.start_ns) / d.ns_per_unit,
            static_cast<double>(to - from) / d.ns_per_unit,
            span->kind,
            fmt::format("{}, {}", op, format_ns(static_cast<double>(span->end_ns - span->start_ns))),
            mark == d.marks.end() ? "" : mark->second,
            op};
    const bool joins = !boxes.empty() && boxes.back().kind == box.kind && boxes.back().mark.empty() &&
                       box.mark.empty() && box.width < kThin && (together > 1 || boxes.back().width < kThin) &&
                       box.x - (boxes.back().x + boxes.back().width) < kThin;
    if (!joins) {
      boxes.push_back(std::move(box));
      together = 1;
      continue;
    }
    Box& last = boxes.back();
    last.width = box.x + box.width - last.x;
    last.title = fmt::format("{} ops", ++together);
    last.label.clear();
  }
  return boxes;
}

// One run's lanes; moves d.top below them.
std::string lanes(Drawing& d, const std::string& label) {
  std::map<std::string, std::vector<const Span*>> lanes;
  for (const Span& span : d.trace.spans) {
    if (!is_inside(span, d.window, d.trace)) continue;
    const profiler::Track& track = d.trace.tracks[span.track];
    lanes[fmt::format("{} {}", name(track.stream), d.trace.text(track.name))].push_back(&span);
  }
  const auto length = static_cast<double>(d.window.end_ns - d.window.start_ns);
  std::string out = fmt::format("<text x=\"0\" y=\"{:.1f}\" font-weight=\"600\">{}, step {}: {}</text>\n", d.top + 12,
                                html_escape(label), d.window.step, format_ns(length));
  d.top += kTop;
  for (const auto& [stream, spans] : lanes) {
    out += fmt::format("<text class=\"m\" x=\"0\" y=\"{:.1f}\">{}</text>\n", d.top + 13,
                       html_escape(stream.size() > 19 ? stream.substr(0, 18) + "…" : stream));
    for (const Box& box : boxes_of(d, spans)) out += rect(d, box, d.top);
    d.top += kLane;
  }
  const double end = kLeft + length / d.ns_per_unit;
  out += fmt::format(
      "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"var(--fg)\" "
      "stroke-dasharray=\"3 3\"/>\n",
      end, d.top - kLane * static_cast<double>(lanes.size()), d.top);
  d.top += 14;
  return out;
}

// A round number of ns, about an eighth of `whole`.
double tick_of(double whole) {
  const double raw = whole / 8, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

}  // namespace

Result<std::vector<OpPair>> pair_ops(const TimelineSide& before, const TimelineSide& after, int32_t rank) {
  MB_ASSIGN(const StepWindow was, window_of(before, rank));
  MB_ASSIGN(const StepWindow is, window_of(after, rank));
  std::map<std::string, OpPair> pairs;
  for (const auto& [path, ns] : times_of(*before.trace, was)) pairs[path].before_ns = ns;
  for (const auto& [path, ns] : times_of(*after.trace, is)) pairs[path].after_ns = ns;
  std::vector<OpPair> ops;
  for (auto& [path, pair] : pairs) {
    pair.path = path;
    ops.push_back(pair);
  }
  std::stable_sort(ops.begin(), ops.end(),
                   [](const OpPair& a, const OpPair& b) { return std::abs(a.change_ns()) > std::abs(b.change_ns()); });
  return ops;
}

Result<std::string> timelines_svg(const TimelineSide& before, const TimelineSide& after, int32_t rank,
                                  const std::string& id) {
  MB_ASSIGN(const StepWindow is, window_of(after, rank));
  int64_t longest = is.end_ns - is.start_ns;
  std::map<std::string, std::string> marks;
  std::optional<StepWindow> was;
  if (before.trace != nullptr) {
    MB_ASSIGN(was, window_of(before, rank));
    longest = std::max(longest, was->end_ns - was->start_ns);
    MB_ASSIGN(const auto ops, pair_ops(before, after, rank));
    for (const OpPair& op : ops)
      if (std::string mark = mark_of(op, was->end_ns - was->start_ns); !mark.empty()) marks[op.path] = std::move(mark);
  }
  const double ns_per_unit = static_cast<double>(longest) / (kWidth - kLeft - 10);
  std::string body;
  double top = 20;
  const auto draw = [&](const TimelineSide& side, const StepWindow& window) {
    Drawing d{*side.trace, window, ns_per_unit, top, marks, id};
    body += lanes(d, side.label);
    top = d.top;
  };
  if (was) draw(before, *was);
  draw(after, is);
  std::string axis;
  const double tick = tick_of(static_cast<double>(longest));
  for (double at = 0; at <= static_cast<double>(longest); at += tick) {
    const double x = kLeft + at / ns_per_unit;
    axis += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"14\" y2=\"{1:.1f}\"/>"
        "<text class=\"m\" x=\"{2:.1f}\" y=\"11\">{3}</text>\n",
        x, top, x + 2, at == 0 ? "0" : format_ns(at));
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"timeline\"><defs><pattern id=\"hatch{}\" width=\"5\" "
      "height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line x1=\"0\" y1=\"0\" x2=\"0\" "
      "y2=\"5\" stroke=\"var(--bg)\" stroke-width=\"1.6\"/></pattern></defs>\n{}{}</svg>",
      kWidth, top, id, axis, body);
}

}  // namespace mbb::analysis
