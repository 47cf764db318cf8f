// From points and pins to a history, and its forms in text.
#include "analysis/report/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/gate/judge.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using baselines::HistoryPoint;
using baselines::Pin;

std::vector<HistoryEpoch> epochs_of(const std::vector<HistoryPoint>& points) {
  std::vector<HistoryEpoch> epochs;
  for (size_t i = 0; i < points.size(); ++i) {
    const auto same = [&](const HistoryEpoch& e) {
      return e.class_hash == points[i].class_hash && e.epoch == points[i].epoch;
    };
    auto found = std::find_if(epochs.begin(), epochs.end(), same);
    if (found == epochs.end()) found = epochs.insert(epochs.end(), {points[i].class_hash, points[i].epoch, {}});
    found->points.push_back(i);
  }
  return epochs;
}

void add_changes(History& history, const HistoryEpoch& epoch) {
  std::vector<double> values;
  for (const size_t i : epoch.points) values.push_back(history.points[i].value);
  for (const Change& found : find_changes(values)) {
    HistoryChange c;
    c.change = found;
    for (size_t* place : {&c.change.at, &c.change.earliest, &c.change.latest, &c.change.seen})
      *place = epoch.points[*place];
    c.good = history.points[epoch.points[found.earliest - 1]].build;
    c.bad = history.points[c.change.latest].build;
    c.likely = history.points[c.change.at].build;
    history.changes.push_back(std::move(c));
  }
}

std::string value_text(const History& history, double value) {
  const MetricInfo* info = find_metric(history.metric);
  return info != nullptr ? format_value(*info, value) : fmt::format("{:.5g} {}", value, history.unit);
}

std::string percent(double fraction) {
  return fmt::format("{:+.2f} %", 100.0 * fraction);
}

std::string commits(const HistoryChange& c) {
  return c.good == c.bad ? fmt::format("none: {} on both sides", c.good) : fmt::format("{}..{}", c.good, c.bad);
}

Tone tone_of(const std::string& verdict) {
  if (verdict == "slower" || verdict == "broken") return Tone::kBad;
  if (verdict == "faster") return Tone::kGood;
  return verdict.empty() || verdict == "same" || verdict == "new" ? Tone::kPlain : Tone::kWarning;
}

// Rows and columns of characters, row 0 on top.
class Canvas {
 public:
  Canvas(size_t width, size_t height) : width_(width), rows_(height, std::string(width, ' ')) {}
  void put(size_t column, size_t row, char mark, bool over = true) {
    if (over || rows_[row][column] == ' ') rows_[row][column] = mark;
  }
  void column(size_t column, char mark) {
    for (std::string& row : rows_)
      if (row[column] == ' ') row[column] = mark;
  }
  const std::string& row(size_t i) const { return rows_[i]; }

 private:
  size_t width_;
  std::vector<std::string> rows_;
};

}  // namespace

std::vector<HistoryPoint> nights_of(std::vector<HistoryPoint> points) {
  const bool gated = std::any_of(points.begin(), points.end(), [](const auto& p) { return p.command == "gate"; });
  std::erase_if(points, [&](const HistoryPoint& p) {
    return gated ? p.command != "gate" : p.command != "suite" && p.command != "run" && p.command != "import";
  });
  return points;
}

History make_history(const baselines::SeriesSummary& of, std::vector<HistoryPoint> points, const std::vector<Pin>& pins,
                     std::int64_t now_unix_ns) {
  History history{of.key.identity_hash,        of.cell, of.key.metric, of.model, of.class_label, of.unit,
                  nights_of(std::move(points))};
  history.epochs = epochs_of(history.points);
  for (const HistoryEpoch& epoch : history.epochs) add_changes(history, epoch);
  std::sort(history.changes.begin(), history.changes.end(),
            [](const auto& a, const auto& b) { return a.change.at < b.change.at; });
  for (const Pin& pin : pins) {
    if (pin.identity_hash != of.key.identity_hash || pin.metric != of.key.metric) continue;
    std::vector<double> all;
    for (const auto& night : pin.nights) all.insert(all.end(), night.begin(), night.end());
    HistoryBaseline line{pin.id,
                         pin.accepted_unix_ns,
                         pin.expires_unix_ns,
                         pseudo_median(all),
                         pin.ended_by.empty() && !baselines::has_expired(pin, now_unix_ns),
                         {}};
    for (size_t i = 0; i < history.points.size(); ++i) {
      const HistoryPoint& p = history.points[i];
      if (p.class_hash == pin.class_hash && (pin.epoch.empty() || pin.epoch == p.epoch) &&
          p.created_unix_ns >= pin.accepted_unix_ns)
        line.points.push_back(i);
    }
    history.baselines.push_back(std::move(line));
  }
  return history;
}

Table histories_table(const std::vector<History>& histories) {
  Table table{"histories",
              "",
              {{"cell", "cell"},
               {"metric", "metric"},
               {"class", "class"},
               {"points", "points", Align::kRight},
               {"epochs", "epochs", Align::kRight},
               {"last", "last", Align::kRight},
               {"verdict", "last verdict"},
               {"change", "last change"}},
              {},
              {}};
  for (const History& h : histories) {
    if (h.points.empty()) continue;
    const HistoryPoint& last = h.points.back();
    std::string change = "-";
    if (!h.changes.empty())
      change = fmt::format("{} on {}, {}", percent(h.changes.back().change.relative()),
                           iso_time(h.points[h.changes.back().change.at].created_unix_ns).substr(0, 10),
                           commits(h.changes.back()));
    table.rows.push_back({{{h.cell},
                           {h.metric},
                           {h.class_label},
                           {std::to_string(h.points.size()), static_cast<double>(h.points.size())},
                           {std::to_string(h.epochs.size()), static_cast<double>(h.epochs.size())},
                           {value_text(h, last.value), last.value},
                           {last.verdict.empty() ? "-" : last.verdict, baselines::kNotMeasured, tone_of(last.verdict)},
                           {change}}});
  }
  return table;
}

Table changes_table(const History& h) {
  Table table{"changes",
              "",
              {{"change", "change", Align::kRight},
               {"before", "before", Align::kRight},
               {"after", "after", Align::kRight},
               {"from", "between"},
               {"to", "and"},
               {"commits", "product (good..bad)"},
               {"likely", "most likely"},
               {"seen", "seen on"}},
              {},
              {}};
  for (auto c = h.changes.rbegin(); c != h.changes.rend(); ++c) {
    const auto day = [&](size_t i) { return iso_time(h.points[i].created_unix_ns).substr(0, 16); };
    table.rows.push_back({{{percent(c->change.relative()), c->change.relative()},
                           {value_text(h, c->change.before), c->change.before},
                           {value_text(h, c->change.after), c->change.after},
                           {day(c->change.earliest)},
                           {day(c->change.latest)},
                           {commits(*c)},
                           {c->likely},
                           {day(c->change.seen)}}});
  }
  table.footer.push_back(h.changes.empty()
                             ? "No change stands out of the nights' noise (at most one year in twenty shows one "
                               "without cause)."
                             : "A change came after the good build and at the latest with the bad one, with about "
                               "95 %.");
  if (constexpr ChangeOptions kUsual; h.changes.empty() && !h.points.empty())
    table.footer.push_back(fmt::format("One is looked for from an epoch's {}th point on, against those before it.",
                                       kUsual.fewest_before + 1));
  const auto unseen = std::count_if(h.points.begin(), h.points.end(), [](const auto& p) { return !(p.value > 0.0); });
  if (unseen > 0)
    table.footer.push_back(fmt::format(
        "{} of {} points are 0 or below and have no ratios: no change is looked for there.", unseen, h.points.size()));
  return table;
}

Table points_table(const History& h, size_t limit) {
  Table table{"points",
              "",
              {{"time", "night (UTC)"},
               {"run", "run"},
               {"build", "build"},
               {"value", h.metric, Align::kRight, h.unit},
               {"launches", "launches", Align::kRight},
               {"epoch", "epoch"},
               {"verdict", "verdict"},
               {"against", "baseline"}},
              {},
              {}};
  const size_t first = h.points.size() > limit ? h.points.size() - limit : 0;
  for (size_t i = h.points.size(); i-- > first;) {
    const HistoryPoint& p = h.points[i];
    table.rows.push_back({{{iso_time(p.created_unix_ns).substr(0, 16)},
                           {p.run},
                           {p.build.empty() ? "-" : p.build},
                           {value_text(h, p.value), p.value},
                           {p.launches > 0 ? std::to_string(p.launches) : "-", static_cast<double>(p.launches)},
                           {p.epoch.empty() ? "-" : p.epoch.substr(0, 8)},
                           {p.verdict.empty() ? "-" : p.verdict, baselines::kNotMeasured, tone_of(p.verdict)},
                           {p.against.empty() ? "-" : p.against}}});
  }
  if (first > 0) table.footer.push_back(fmt::format("{} older points are not shown", first));
  return table;
}

std::string plot_text(const History& h, size_t width, size_t height) {
  std::vector<double> finite;
  for (const HistoryPoint& p : h.points)
    if (std::isfinite(p.value)) finite.push_back(p.value);
  if (finite.empty() || width < 2 || height < 2) return "";
  for (const HistoryBaseline& b : h.baselines)
    if (b.stands) finite.push_back(b.value);
  auto [low, high] = std::minmax_element(finite.begin(), finite.end());
  const double middle = 0.5 * (*low + *high), half = std::max(0.55 * (*high - *low), 0.005 * std::abs(middle));
  const double bottom = middle - half, top = middle + half;
  const auto row_of = [&](double value) {
    const double at = (top - value) / (top - bottom) * static_cast<double>(height - 1);
    return static_cast<size_t>(std::clamp(std::lround(at), 0L, static_cast<long>(height) - 1));
  };
  const size_t columns = std::min(width, std::max<size_t>(2, h.points.size()));
  const auto column_of = [&](size_t i) { return std::min(columns - 1, i * columns / h.points.size()); };
  Canvas canvas(columns, height);
  std::vector<std::vector<double>> stacks(columns);
  for (size_t i = 0; i < h.points.size(); ++i)
    if (std::isfinite(h.points[i].value)) stacks[column_of(i)].push_back(h.points[i].value);
  for (size_t c = 0; c < columns; ++c)
    if (!stacks[c].empty()) canvas.put(c, row_of(median(stacks[c])), 'o');
  for (const HistoryBaseline& b : h.baselines) {
    if (!b.stands) continue;
    for (const size_t i : b.points) canvas.put(column_of(i), row_of(b.value), '-', false);
  }
  for (size_t e = 1; e < h.epochs.size(); ++e) canvas.column(column_of(h.epochs[e].points.front()), ':');
  std::string text;
  for (size_t row = 0; row < height; ++row) {
    const double value = top - (top - bottom) * static_cast<double>(row) / static_cast<double>(height - 1);
    const bool labelled = row == 0 || row + 1 == height || row == height / 2;
    std::string line = fmt::format("{:>10} |{}", labelled ? value_text(h, value) : "", canvas.row(row));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  std::string axis(columns, '_');
  for (const HistoryChange& c : h.changes) axis[column_of(c.change.at)] = '^';
  text += fmt::format("{:>10} |{}\n", "", axis);
  return text + fmt::format("{:>10}  {} .. {}\n", "", iso_time(h.points.front().created_unix_ns).substr(0, 10),
                            iso_time(h.points.back().created_unix_ns).substr(0, 10));
}

std::string to_json(const History& h) {
  const auto number = [](double v) { return std::isfinite(v) ? format_exact(v) : std::string("null"); };
  std::vector<std::string> points, epochs, lines, changes;
  for (const HistoryPoint& p : h.points)
    points.push_back(fmt::format(
        "{{\"run\": {}, \"time\": {}, \"build\": {}, \"class\": {}, \"epoch\": {}, \"value\": {}, \"low\": {}, "
        "\"high\": {}, \"launches\": {}, \"verdict\": {}, \"baseline\": {}}}",
        json_quote(p.run), json_quote(iso_time(p.created_unix_ns)), json_quote(p.build), json_quote(p.class_hash),
        json_quote(p.epoch), number(p.value), number(p.low), number(p.high), p.launches,
        p.verdict.empty() ? "null" : json_quote(p.verdict), p.against.empty() ? "null" : json_quote(p.against)));
  for (const HistoryEpoch& e : h.epochs)
    epochs.push_back(fmt::format("{{\"class\": {}, \"epoch\": {}, \"first\": {}, \"points\": {}}}",
                                 json_quote(e.class_hash), json_quote(e.epoch), e.points.front(), e.points.size()));
  for (const HistoryBaseline& b : h.baselines)
    lines.push_back(fmt::format("{{\"baseline\": {}, \"from\": {}, \"value\": {}, \"stands\": {}}}", json_quote(b.id),
                                json_quote(iso_time(b.from_unix_ns)), number(b.value), b.stands));
  for (const HistoryChange& c : h.changes)
    changes.push_back(fmt::format(
        "{{\"change\": {}, \"before\": {}, \"after\": {}, \"at\": {}, \"earliest\": {}, \"latest\": {}, \"seen\": {}, "
        "\"good_build\": {}, \"bad_build\": {}, \"likely_build\": {}}}",
        number(c.change.relative()), number(c.change.before), number(c.change.after), c.change.at, c.change.earliest,
        c.change.latest, c.change.seen, json_quote(c.good), json_quote(c.bad), json_quote(c.likely)));
  return fmt::format(
      "{{\"series\": {}, \"cell\": {}, \"metric\": {}, \"class\": {}, \"unit\": {}, \"points\": [{}], \"epochs\": "
      "[{}], \"baselines\": [{}], \"changes\": [{}]}}\n",
      json_quote(h.identity_hash), json_quote(h.cell), json_quote(h.metric), json_quote(h.class_label),
      json_quote(h.unit), fmt::join(points, ", "), fmt::join(epochs, ", "), fmt::join(lines, ", "),
      fmt::join(changes, ", "));
}

}  // namespace mbb::analysis
