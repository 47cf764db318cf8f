// Panel "history": one metric of one cell over runs, with intervals, baselines, epochs, verdicts, and the runs A and B.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include "analysis/metrics/metrics.h"
#include "analysis/report/history.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/fit.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using analysis::History;
using analysis::HistoryBaseline;
using analysis::HistoryChange;
using analysis::HistoryEpoch;
using baselines::HistoryPoint;
using baselines::SeriesSummary;

// One metric of one cell identity: its series on every machine and in every epoch.
struct Group {
  std::vector<SeriesSummary> stretches;  // oldest first
  std::string key() const { return stretches.front().key.identity_hash + "|" + stretches.front().key.metric; }
  const SeriesSummary& newest() const { return stretches.back(); }
  std::int64_t points() const {
    std::int64_t sum = 0;
    for (const SeriesSummary& one : stretches) sum += one.points;
    return sum;
  }
};

std::vector<Group> groups_of(const std::vector<SeriesSummary>& list) {
  std::vector<Group> groups;
  std::map<std::string, std::size_t> places;
  for (const SeriesSummary& series : list) {
    const auto [at, added] = places.try_emplace(series.key.identity_hash + "|" + series.key.metric, groups.size());
    if (added) groups.emplace_back();
    groups[at->second].stretches.push_back(series);
  }
  for (Group& group : groups) {
    std::stable_sort(group.stretches.begin(), group.stretches.end(),
                     [](const auto& a, const auto& b) { return a.newest_unix_ns < b.newest_unix_ns; });
  }
  return groups;
}

// What one looks at first leads, then the order of the declarations.
std::size_t metric_rank(const std::string& metric) {
  static constexpr std::array<std::string_view, 6> kFirst = {
      "step_time", "tokens_per_second_per_gpu", "tokens_per_second", "mfu_bf16", "mfu_fp8", "peak_memory"};
  if (const auto* at = std::find(kFirst.begin(), kFirst.end(), metric); at != kFirst.end())
    return static_cast<std::size_t>(at - kFirst.begin());
  const auto declared = analysis::metrics();
  const auto found = std::find_if(declared.begin(), declared.end(), [&](const auto& one) { return one.id == metric; });
  return kFirst.size() + static_cast<std::size_t>(found - declared.begin());
}

// By cell, then by what is looked at first.
void sort_groups(std::vector<Group>& groups) {
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    const SeriesSummary& x = a.newest();
    const SeriesSummary& y = b.newest();
    return std::tuple(std::string_view(x.cell), std::string_view(x.key.identity_hash), metric_rank(x.key.metric),
                      std::string_view(x.key.metric)) <
           std::tuple(std::string_view(y.cell), std::string_view(y.key.identity_hash), metric_rank(y.key.metric),
                      std::string_view(y.key.metric));
  });
}

TableData groups_table(const std::vector<Group>& groups) {
  TableData data;
  data.columns = {
      {"cell", "", Align::kLeft, 0, "Name of its newest point.", false, Fold::kNever, true},
      {"metric", "", Align::kLeft, 90, "One metric of the cell; hover over a name for its definition.", false},
      {"class", "", Align::kLeft, 0, "Series never cross classes.", false, Fold::kWhenEqual},
      {"points", "", Align::kRight, 44, "Runs in the series.", false},
      {"epochs", "", Align::kRight, 46, "Stretches on one machine without a change of environment.", false,
       Fold::kWhenEqual}};
  for (const Group& group : groups) {
    const SeriesSummary& newest = group.newest();
    data.rows.push_back({text_cell(newest.cell), text_cell(metric_title(newest.key.metric)),
                         text_cell(newest.class_label, Ink::kMuted),
                         number_cell(std::to_string(group.points()), static_cast<double>(group.points())),
                         number_cell(std::to_string(group.stretches.size()),
                                     static_cast<double>(group.stretches.size()), Ink::kMuted)});
    data.rows.back()[0].hover = clean(newest.cell + ", " + newest.model, 200);
    data.rows.back()[1].hover = metric_meaning(newest.key.metric);
    data.keys.push_back(group.key());
  }
  return data;
}

std::string epoch_text(const HistoryEpoch& epoch) {
  return epoch.epoch.empty() ? "machine " + clean(epoch.class_hash.substr(0, 8)) : "epoch " + clean(epoch.epoch, 32);
}

// Number of the epoch of each point.
std::vector<std::size_t> epochs_of(const History& history) {
  std::vector<std::size_t> out(history.points.size(), 0);
  for (std::size_t i = 0; i < history.epochs.size(); ++i) {
    for (const std::size_t point : history.epochs[i].points) {
      if (point < out.size()) out[point] = i;
    }
  }
  return out;
}

TableCell judgement_cell(const HistoryPoint& point) {
  const Result<baselines::Verdict> verdict = baselines::parse_verdict(point.verdict);
  if (!verdict.has_value()) return text_cell("-", Ink::kFaint);
  TableCell cell = text_cell(verdict_text(*verdict), verdict_ink(*verdict));
  if (!point.against.empty()) cell.hover = "against " + clean(point.against, 80);
  return cell;
}

// A commit is known by its first digits, a product that was declared ("image nemo:25.09") by all of it.
std::string product_of(const std::string& build) {
  return build.find(' ') == std::string::npos ? build.substr(0, 10) : clean(build, 60);
}

std::string change_text(const HistoryChange& change) {
  const auto commit = [](const std::string& build) {
    return build.empty()                          ? std::string("?")
           : build.find(' ') == std::string::npos ? clean(build, 10)
                                                  : product_of(build);
  };
  return fmt::format("{} between {} and {}", percent_text(change.change.relative(), true), commit(change.good),
                     commit(change.bad));
}

TableData night_rows(const History& history) {
  TableData data;
  data.columns = {{"when", "UTC", Align::kLeft, 104, "When its run began.", false},
                  {"run", "", Align::kLeft, 138, "Click: run A. Ctrl+click: run B.", true},
                  {metric_title(history.metric), "", Align::kRight, 76, metric_meaning(history.metric), false},
                  {"95 %", "", Align::kRight, 138, "Its interval, as stored.", false},
                  {"n", "", Align::kRight, 22, "Launches: evidence counts them.", false},
                  {"build", "", Align::kLeft, 72, "Commit of the program that ran, or the product that it declared.",
                   true, Fold::kWhenEmpty},
                  {"epoch", "", Align::kLeft, 0, "Epoch, or the machine's class where the run names none.", false,
                   Fold::kWhenEqual},
                  {"verdict", "", Align::kLeft, 84, "As the gate stored it with the run.", false, Fold::kWhenEmpty},
                  {"change", "", Align::kLeft, 0,
                   "Where a sequential test finds that the series changed, and the commits.", false, Fold::kWhenEmpty}};
  const std::vector<std::size_t> epochs = epochs_of(history);
  for (std::size_t i = history.points.size(); i-- > 0;) {  // newest first
    const HistoryPoint& point = history.points[i];
    const bool interval = std::isfinite(point.low) && std::isfinite(point.high);
    std::vector<TableCell> row = {
        number_cell(utc_text(point.created_unix_ns), static_cast<double>(point.created_unix_ns), Ink::kMuted),
        text_cell(point.run),
        number_cell(quantity_text(point.value, history.unit), point.value),
        text_cell(
            interval ? quantity_text(point.low, history.unit) + " .. " + quantity_text(point.high, history.unit) : "-",
            Ink::kMuted),
        number_cell(std::to_string(point.launches), point.launches, point.launches > 1 ? Ink::kText : Ink::kWarning),
        text_cell(product_of(point.build), Ink::kMuted),
        text_cell(epochs[i] < history.epochs.size() ? epoch_text(history.epochs[epochs[i]]) : "", Ink::kMuted),
        judgement_cell(point),
        text_cell("")};
    if (point.launches < 2) row[4].hover = "one launch: not evidence";
    for (const HistoryChange& change : history.changes) {
      if (change.change.at == i) row[8] = text_cell(change_text(change), Ink::kWarning);
    }
    data.rows.push_back(std::move(row));
    data.keys.push_back(point.run);
  }
  return data;
}

class HistoryPanel : public Panel {
 public:
  void draw(Session& session) override {
    list_.want(session.worker, fmt::format("series {}", session.generation),
               [source = session.source](const std::atomic<bool>&) { return read_series_list(source); });
    if (list_.error() != nullptr) return draw_error(*list_.error());
    if (list_.value() == nullptr) return draw_loading("reading the series");
    if (list_.value()->empty())
      return draw_empty("No series yet",
                        "A series begins with the first ok cell that is stored; run a suite, or `mbbench index DIR`.");
    if (built_ != list_.value_key()) {
      groups_ = groups_of(*list_.value());
      sort_groups(groups_);
      data_ = groups_table(groups_);
      state_.dirty = true;
      built_ = list_.value_key();
    }
    const Group& chosen = choose(session);
    const float left = std::clamp(table_width(data_, state_), px(230), ImGui::GetContentRegionAvail().x * 0.42F);
    ImGui::BeginChild("list", ImVec2(left, 0), false);
    draw_search(session, "history.search", "find a series", state_.filter, 220);
    draw_list(session, chosen);
    ImGui::EndChild();
    ImGui::SameLine(0, px(12));
    ImGui::BeginChild("plot", ImVec2(0, 0), false);
    draw_group(session, chosen);
    ImGui::EndChild();
  }

  bool loading() const override { return list_.loading() || history_.loading(); }

 private:
  // The series of the selected cell and metric, else the one clicked, else the longest.
  const Group& choose(const Session& session) const {
    const baselines::Cell* cell = session.cell_a();
    const std::string metric = session.selection.metric.empty() ? "step_time" : session.selection.metric;
    const Group* best = &groups_.front();
    int best_rank = -1;
    for (const Group& group : groups_) {
      const baselines::SeriesKey& key = group.newest().key;
      // A series that was clicked stays while it is the one of the selected metric.
      if (group.key() == chosen_ && key.metric == metric) return group;
      const int rank =
          (cell != nullptr && key.identity_hash == cell->identity_hash ? 2 : 0) + (key.metric == metric ? 1 : 0);
      if (rank > best_rank || (rank == best_rank && group.points() > best->points())) {
        best = &group;
        best_rank = rank;
      }
    }
    return *best;
  }

  void draw_list(Session& session, const Group& chosen) {
    TableLook look;
    look.selected = chosen.key();
    look.keyboard = true;
    // Chosen elsewhere, it would else lie below what is shown.
    if (look.selected != shown_key_) state_.scroll_to_selection = true;
    shown_key_ = look.selected;
    const TableEvents events = draw_table("series", data_, state_, look);
    if (!events.clicked) return;
    chosen_ = data_.keys[*events.clicked];
    session.selection.metric = chosen_.substr(chosen_.find('|') + 1);
  }

  void draw_group(Session& session, const Group& group) {
    const SeriesSummary& newest = group.newest();
    history_.want(session.worker, fmt::format("{}|{}", group.key(), session.generation),
                  [source = session.source, newest](const std::atomic<bool>&) { return read_history(source, newest); });
    heading(metric_title(newest.key.metric));
    hover_text(metric_meaning(newest.key.metric));
    ImGui::SameLine(0, px(10));
    // What folds in the tables is said here.
    std::string facts =
        fmt::format("{}   {}   {}", clean(newest.cell, 80), clean(newest.model, 40), clean(newest.class_label, 80));
    if (history_.value() != nullptr && history_.value()->epochs.size() == 1)
      facts += "   " + epoch_text(history_.value()->epochs.front());
    const std::string fitted = fit_text(*fonts().text, fonts().text->FontSize, facts, ImGui::GetContentRegionAvail().x);
    muted(fitted);
    if (fitted != facts) hover_text(facts);
    if (history_.error() != nullptr) return draw_error(*history_.error());
    if (history_.value() == nullptr) return draw_loading("reading the series");
    const History& history = *history_.value();
    probe_value("history.points", static_cast<long long>(history.points.size()));
    probe_value("history.epochs", static_cast<long long>(history.epochs.size()));
    probe_value("history.baselines", static_cast<long long>(history.baselines.size()));
    probe_value("history.changes", static_cast<long long>(history.changes.size()));
    if (history.points.empty())
      return draw_empty("No nights in this series", "Comparisons, confirmations and noise experiments are none.");
    if (points_of_ != history_.value_key()) {
      points_ = night_rows(history);
      points_state_.dirty = true;
      points_of_ = history_.value_key();
    }
    const float room = ImGui::GetContentRegionAvail().y;
    const float below = std::min(px(table_height(std::min<std::size_t>(points_.rows.size(), 12))), room * 0.42F);
    draw_plot(session, history, std::max(px(120), room - below - px(26)));
    draw_signs();
    TableLook look;
    look.selected = session.selection.run;
    look.other = session.selection.other;
    look.mark_pair = true;
    const TableEvents events = draw_table("points", points_, points_state_, look);
    if (events.clicked) session.select_run(points_.keys[*events.clicked]);
    if (events.second) session.select_other(points_.keys[*events.second]);
    if (events.opened) session.panel = "run";
  }

  static void draw_signs() {
    const std::vector<LegendItem> items = {{"run", color(Ink::kText), Mark::kDot, false},
                                           {"A", color(Ink::kRunA), Mark::kDot, false},
                                           {"B", color(Ink::kRunB), Mark::kDiamond, false},
                                           {"\xE2\x96\xB2 slower", color(Ink::kSlower), Mark::kDot, true},
                                           {"\xE2\x96\xBC faster", color(Ink::kFaster), Mark::kDot, true},
                                           {"? not decided", color(Ink::kWarning), Mark::kDot, true},
                                           {"^ change", color(Ink::kWarning, 0.6F), Mark::kDot, true},
                                           {"\xE2\x80\x95 baseline", color(Ink::kAccent), Mark::kDot, true}};
    draw_legend(items);
  }

  static void draw_plot(Session& session, const History& history, float height) {
    const std::vector<HistoryPoint>& points = history.points;
    Range range;
    for (const HistoryPoint& point : points) {
      range.add(point.value);
      range.add(point.low);
      range.add(point.high);
    }
    for (const HistoryBaseline& baseline : history.baselines) range.add(baseline.value);
    Plot plot("history.plot", ImVec2(0, height),
              {Range{-0.5, static_cast<double>(points.size()) - 0.5}, "index", "run, oldest first"},
              {range.padded(0.15), history.unit, metric_title(history.metric)});
    const std::vector<std::size_t> epochs = epochs_of(history);
    draw_usual(plot, points, epochs);
    for (const HistoryBaseline& baseline : history.baselines) draw_baseline(plot, baseline, points, history.unit);
    for (const HistoryChange& change : history.changes) draw_change(plot, change);
    draw_epochs(plot, history, epochs);
    for (std::size_t i = 0; i < points.size(); ++i) draw_point(session, plot, points[i], static_cast<double>(i));
    if (!plot.hovered()) return;
    const double at = std::round(plot.value_x(ImGui::GetIO().MousePos.x));
    if (at < 0 || at >= static_cast<double>(points.size())) return;
    const auto index = static_cast<std::size_t>(at);
    plot.cursor(at, color(Ink::kFaint));
    draw_hover(points[index], epochs[index] < history.epochs.size() ? epoch_text(history.epochs[epochs[index]]) : "",
               history.unit);
    if (!plot.clicked()) return;
    if (ImGui::GetIO().KeyCtrl)
      session.select_other(points[index].run);
    else
      session.select_run(points[index].run);
  }

  // The middle half of the newest epoch: where this series usually lies.
  static void draw_usual(Plot& plot, const std::vector<HistoryPoint>& points, const std::vector<std::size_t>& epochs) {
    std::vector<double> values;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (epochs[i] == epochs.back()) values.push_back(points[i].value);
    }
    plot.band(analysis::quantile(values, 0.25), analysis::quantile(values, 0.75), color(Ink::kMuted, 0.10F));
    plot.level(analysis::median(values), color(Ink::kMuted), "median");
  }

  // From where it was accepted to where it expired.
  static void draw_baseline(Plot& plot, const HistoryBaseline& baseline, const std::vector<HistoryPoint>& points,
                            const std::string& unit) {
    double from = -0.5;
    double to = static_cast<double>(points.size()) - 0.5;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].created_unix_ns < baseline.from_unix_ns) from = static_cast<double>(i);
      if (baseline.until_unix_ns != 0 && points[i].created_unix_ns > baseline.until_unix_ns)
        to = std::min(to, static_cast<double>(i) - 0.5);
    }
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const float left = plot.x(from);
    const float at = plot.y(baseline.value);
    draw->AddLine(ImVec2(left, at), ImVec2(plot.x(to), at), color(Ink::kAccent, baseline.stands ? 1.0F : 0.45F),
                  px(baseline.stands ? 2.0F : 1.0F));
    const std::string text =
        fmt::format("{} {}", baseline.stands ? "baseline" : "ended baseline", quantity_text(baseline.value, unit));
    draw->AddText(fonts().small, fonts().small->FontSize, ImVec2(left + px(4), at - px(16)),
                  color(Ink::kAccent, baseline.stands ? 1.0F : 0.6F), text.c_str());
  }

  // The points that a change may have come with, and its size.
  static void draw_change(Plot& plot, const HistoryChange& change) {
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const float left = plot.x(static_cast<double>(change.change.earliest) - 0.5);
    const float right = plot.x(static_cast<double>(change.change.latest) + 0.5);
    draw->AddRectFilled(ImVec2(left, plot.low().y), ImVec2(right, plot.high().y), color(Ink::kWarning, 0.10F));
    draw->AddText(fonts().small, fonts().small->FontSize, ImVec2(left + px(3), plot.high().y - px(17)),
                  color(Ink::kWarning), fmt::format("^ {}", change_text(change)).c_str());
  }

  // Points of one epoch are joined; where the machine or the epoch changes stands a line with the new one's name.
  static void draw_epochs(Plot& plot, const History& history, const std::vector<std::size_t>& epochs) {
    const std::vector<HistoryPoint>& points = history.points;
    std::vector<double> xs;
    std::vector<double> ys;
    ImDrawList* draw = ImGui::GetWindowDrawList();
    for (std::size_t i = 0; i <= points.size(); ++i) {
      const bool ends = i == points.size() || (i > 0 && epochs[i] != epochs[i - 1]);
      if (ends) {
        plot.line(xs, ys, color(Ink::kMuted, 0.5F), 1);
        xs.clear();
        ys.clear();
      }
      if (i == points.size()) return;
      if (ends && epochs[i] < history.epochs.size()) {
        const float x = plot.x(static_cast<double>(i) - 0.5);
        for (float y = plot.low().y; y < plot.high().y; y += px(6))
          draw->AddLine(ImVec2(x, y), ImVec2(x, std::min(y + px(3), plot.high().y)), color(Ink::kWarning, 0.8F));
        draw->AddText(fonts().small, fonts().small->FontSize, ImVec2(x + px(4), plot.low().y + px(2)),
                      color(Ink::kWarning), epoch_text(history.epochs[epochs[i]]).c_str());
      }
      xs.push_back(static_cast<double>(i));
      ys.push_back(points[i].value);
    }
  }

  static void draw_point(const Session& session, Plot& plot, const HistoryPoint& point, double at) {
    const bool is_a = point.run == session.selection.run;
    const bool is_b = point.run == session.selection.other;
    const std::uint32_t ink = color(is_a ? Ink::kRunA : is_b ? Ink::kRunB : Ink::kText, is_a || is_b ? 1.0F : 0.75F);
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const double top = std::isfinite(point.high) ? std::max(point.high, point.value) : point.value;
    if (std::isfinite(point.low) && std::isfinite(point.high))
      draw->AddLine(ImVec2(plot.x(at), plot.y(point.low)), ImVec2(plot.x(at), plot.y(point.high)), ink, px(1.2F));
    const std::vector<double> x = {at};
    const std::vector<double> y = {point.value};
    plot.points(x, y, ink, is_b ? Mark::kDiamond : Mark::kDot, is_a || is_b ? 4.5F : 2.6F);
    if (is_a || is_b) plot.label(at, point.value, ink, is_a ? "A" : "B");
    const Result<baselines::Verdict> verdict = baselines::parse_verdict(point.verdict);
    if (!verdict.has_value() || *verdict == baselines::Verdict::kSame || *verdict == baselines::Verdict::kNew) return;
    const Ink said = verdict_ink(*verdict);
    const char* sign = *verdict == baselines::Verdict::kSlower   ? "\xE2\x96\xB2"
                       : *verdict == baselines::Verdict::kFaster ? "\xE2\x96\xBC"
                                                                 : "?";
    draw->AddText(ImVec2(plot.x(at) - px(4), plot.y(top) - px(18)), color(said), sign);
  }

  static void draw_hover(const HistoryPoint& point, const std::string& epoch, const std::string& unit) {
    ImGui::BeginTooltip();
    heading(clean(point.run, 60));
    muted(fmt::format("{} UTC   {}", utc_text(point.created_unix_ns), epoch));
    ImGui::TextUnformatted(quantity_text(point.value, unit).c_str());
    muted(fmt::format("{} .. {}, {} launch{}", quantity_text(point.low, unit), quantity_text(point.high, unit),
                      point.launches, point.launches == 1 ? ": not evidence" : "es"));
    if (!point.build.empty()) muted("build " + clean(point.build, 40));
    if (!point.verdict.empty())
      ImGui::TextUnformatted(
          fmt::format("{} against {}", clean(point.verdict, 20), point.against.empty() ? "-" : clean(point.against, 60))
              .c_str());
    ImGui::EndTooltip();
  }

  Query<std::vector<SeriesSummary>> list_;
  Query<History> history_;
  std::vector<Group> groups_;
  TableData data_;
  TableState state_;
  std::string built_;
  std::string chosen_;
  std::string shown_key_;
  TableData points_;
  TableState points_state_;
  std::string points_of_;
};

}  // namespace

std::unique_ptr<Panel> make_history_panel() {
  return std::make_unique<HistoryPanel>();
}

}  // namespace mbb::viewer
