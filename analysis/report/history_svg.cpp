// A history as one SVG: nights with their intervals, baselines, epochs, changes.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/metrics.h"
#include "analysis/report/history.h"
#include "analysis/report/html.h"
#include "profiler/base/clock.h"

namespace mbb::analysis {
namespace {

constexpr double kWidth = 1000, kHeight = 240, kLeft = 78, kRight = 12, kTop = 18, kBottom = 26;

struct Scale {
  double low = 0, high = 1;
  size_t points = 1;
  double x(size_t i) const {
    const double width = kWidth - kLeft - kRight;
    return kLeft + width * (static_cast<double>(i) + 0.5) / static_cast<double>(points);
  }
  double y(double value) const { return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom); }
};

Scale scale_of(const History& h) {
  std::vector<double> values;
  const auto add = [&](double v) {
    if (std::isfinite(v)) values.push_back(v);
  };
  for (const auto& p : h.points) add(p.value), add(p.low), add(p.high);
  for (const HistoryBaseline& b : h.baselines)
    if (b.stands) add(b.value);
  Scale s;
  s.points = std::max<size_t>(1, h.points.size());
  if (values.empty()) return s;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double half = std::max(0.55 * (*high - *low), 0.01 * std::abs(*high));
  s.low = 0.5 * (*low + *high) - half, s.high = 0.5 * (*low + *high) + half;
  return s;
}

std::string value_text(const History& h, double value) {
  const MetricInfo* info = find_metric(h.metric);
  return info != nullptr ? format_value(*info, value) : fmt::format("{:.5g} {}", value, h.unit);
}

std::string grid(const History& h, const Scale& s) {
  std::string out;
  for (int i = 0; i <= 4; ++i) {
    const double value = s.low + (s.high - s.low) * i / 4;
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text class=\"m\" "
        "x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - kRight, s.y(value), kLeft - 6, s.y(value) + 4, html_escape(value_text(h, value)));
  }
  const auto day = [&](size_t i) { return iso_time(h.points[i].created_unix_ns).substr(0, 10); };
  out += fmt::format("<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>", kLeft, kHeight - 8, day(0));
  return out + fmt::format("<text class=\"m\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight,
                           kHeight - 8, day(h.points.size() - 1));
}

std::string vertical(double x, const char* stroke, const char* dashes, const std::string& label) {
  return fmt::format(
      "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"var(--{3})\" "
      "stroke-dasharray=\"{4}\"/><text x=\"{5:.1f}\" y=\"{6}\">{7}</text>\n",
      x, kTop, kHeight - kBottom, stroke, dashes, x + 3, kTop - 5, html_escape(label));
}

std::string marks(const History& h, const Scale& s) {
  std::string out;
  for (const HistoryBaseline& b : h.baselines) {
    if (!b.stands || b.points.empty()) continue;
    const double from = s.x(b.points.front());
    out += fmt::format(
        "<g><title>baseline {0}</title><line x1=\"{1:.1f}\" x2=\"{2}\" y1=\"{3:.1f}\" y2=\"{3:.1f}\" "
        "stroke=\"var(--base)\" stroke-width=\"1.5\"/></g>\n",
        html_escape(b.id), from - 4, s.x(b.points.back()) + 4, s.y(b.value));
  }
  const double step = s.points > 1 ? s.x(1) - s.x(0) : 0;
  for (size_t e = 1; e < h.epochs.size(); ++e)
    out +=
        vertical(s.x(h.epochs[e].points.front()) - step / 2, "muted", "2 3", "epoch " + h.epochs[e].epoch.substr(0, 6));
  for (const HistoryChange& c : h.changes) {
    const double from = s.x(c.change.earliest) - step / 2, to = s.x(c.change.latest) + step / 2;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"var(--mark)\" "
        "opacity=\"0.18\"/>",
        from, kTop, to - from, kHeight - kTop - kBottom);
    out += vertical(s.x(c.change.at) - step / 2, "mark", "none",
                    fmt::format("{}{:.2f} %", c.change.relative() > 0 ? "▲ +" : "▼ ", 100 * c.change.relative()));
  }
  return out;
}

// Verdicts as shapes: a filled square is slower or broken, a ring is a night that could not be judged, a dot the rest.
std::string night(const History& h, const Scale& s, size_t i) {
  const auto& p = h.points[i];
  if (!std::isfinite(p.value)) return "";
  const double x = s.x(i), y = s.y(p.value);
  const bool bad = p.verdict == "slower" || p.verdict == "broken";
  const bool open = p.verdict == "inconclusive" || p.verdict == "incomparable" || p.verdict == "unstable";
  std::string out =
      fmt::format("<g><title>{}</title>",
                  html_escape(fmt::format("{} {} build {}: {}{}", iso_time(p.created_unix_ns).substr(0, 16), p.run,
                                          p.build, value_text(h, p.value), p.verdict.empty() ? "" : ", " + p.verdict)));
  if (std::isfinite(p.low) && std::isfinite(p.high))
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"var(--muted)\"/>", x,
                       s.y(p.low), s.y(p.high));
  if (bad)
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\" fill=\"var(--bad)\"/>", x - 4, y - 4);
  else
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\" stroke=\"var(--compute)\"/>", x, y,
                       open ? "var(--bg)" : "var(--compute)");
  return out + "</g>\n";
}

}  // namespace

std::string plot_svg(const History& h, const std::string& id) {
  if (h.points.empty()) return "";
  const Scale s = scale_of(h);
  std::string body = grid(h, s) + marks(h, s);
  for (size_t i = 0; i < h.points.size(); ++i) body += night(h, s, i);
  return fmt::format("<svg id=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"history\">\n{}</svg>", id, kWidth,
                     kHeight, body);
}

}  // namespace mbb::analysis
