// Panel "history": one metric of one cell over runs, with its intervals, the runs A and B, and the verdicts stored.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using baselines::SeriesKey;
using baselines::SeriesPoint;
using baselines::SeriesSummary;

std::string key_text(const SeriesKey& key) {
  return key.identity_hash + "|" + key.class_hash + "|" + key.epoch + "|" + key.metric;
}

TableData series_table(const std::vector<SeriesSummary>& list) {
  TableData data;
  data.columns = {{"metric", "", Align::kLeft, 132,
                   "A series is one metric of one cell identity on one fingerprint class and epoch.", false},
                  {"cell", "", Align::kLeft, 0, "Name of its newest point.", false},
                  {"model", "", Align::kLeft, 104, "", false},
                  {"class", "", Align::kLeft, 96, "Series never cross classes.", false},
                  {"points", "", Align::kRight, 50, "Runs in the series.", false}};
  for (const SeriesSummary& series : list) {
    data.rows.push_back({text_cell(metric_title(series.key.metric)), text_cell(series.cell),
                         text_cell(series.model, Ink::kMuted), text_cell(series.class_label, Ink::kMuted),
                         number_cell(std::to_string(series.points), static_cast<double>(series.points))});
    data.rows.back()[0].hover = metric_meaning(series.key.metric);
    data.keys.push_back(key_text(series.key));
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
      data_ = series_table(*list_.value());
      state_.dirty = true;
      built_ = list_.value_key();
    }
    const SeriesSummary* chosen = choose(session);
    const float left = std::min(px(580), ImGui::GetContentRegionAvail().x * 0.46F);
    ImGui::BeginChild("list", ImVec2(left, 0), false);
    draw_search(session, "history.search", "find a series", state_.filter, 220);
    draw_list(session, *chosen);
    ImGui::EndChild();
    ImGui::SameLine(0, px(12));
    ImGui::BeginChild("plot", ImVec2(0, 0), false);
    draw_series(session, *chosen);
    ImGui::EndChild();
  }

  bool loading() const override { return list_.loading() || points_.loading(); }

 private:
  // The series clicked, else the one of the selected cell and metric, else the longest.
  const SeriesSummary* choose(const Session& session) const {
    const std::vector<SeriesSummary>& list = *list_.value();
    const baselines::Cell* cell = session.cell_a();
    const std::string metric = session.selection.metric.empty() ? "step_time" : session.selection.metric;
    const SeriesSummary* best = &list.front();
    int best_rank = -1;
    for (const SeriesSummary& series : list) {
      if (key_text(series.key) == chosen_) return &series;
      const int rank = (cell != nullptr && series.key.identity_hash == cell->identity_hash ? 2 : 0) +
                       (series.key.metric == metric ? 1 : 0);
      if (rank > best_rank || (rank == best_rank && series.points > best->points)) {
        best = &series;
        best_rank = rank;
      }
    }
    return best;
  }

  void draw_list(Session& session, const SeriesSummary& chosen) {
    TableLook look;
    look.selected = key_text(chosen.key);
    look.keyboard = true;
    const TableEvents events = draw_table("series", data_, state_, look);
    if (!events.clicked) return;
    chosen_ = data_.keys[*events.clicked];
    for (const SeriesSummary& series : *list_.value()) {
      if (key_text(series.key) == chosen_) session.selection.metric = series.key.metric;
    }
  }

  void draw_series(Session& session, const SeriesSummary& series) {
    points_.want(
        session.worker, fmt::format("{}|{}", key_text(series.key), session.generation),
        [source = session.source, key = series.key](const std::atomic<bool>&) { return read_series(source, key); });
    heading(metric_title(series.key.metric));
    hover_text(metric_meaning(series.key.metric));
    ImGui::SameLine(0, px(10));
    muted(fmt::format("{}   {}   {}   epoch {}", clean(series.cell, 60), clean(series.model, 40),
                      clean(series.class_label, 60), clean(series.key.epoch.empty() ? "-" : series.key.epoch, 40)));
    if (points_.error() != nullptr) return draw_error(*points_.error());
    if (points_.value() == nullptr) return draw_loading("reading the series");
    const std::vector<SeriesPoint>& points = *points_.value();
    probe_value("history.points", static_cast<long long>(points.size()));
    if (points.empty()) return draw_empty("No points", "The runs of this series are gone from the store.");
    const float below = px(150);
    draw_plot(session, series, points, std::max(px(160), ImGui::GetContentRegionAvail().y - below));
    draw_verdicts(session);
  }

  void draw_plot(Session& session, const SeriesSummary& series, const std::vector<SeriesPoint>& points, float height) {
    std::vector<double> xs;
    std::vector<double> ys;
    Range range;
    for (std::size_t i = 0; i < points.size(); ++i) {
      xs.push_back(static_cast<double>(i));
      ys.push_back(points[i].value);
      range.add(points[i].value);
      range.add(points[i].low);
      range.add(points[i].high);
    }
    Plot plot("history.plot", ImVec2(0, height),
              {Range{-0.5, static_cast<double>(points.size()) - 0.5}, "index", "run, oldest first"},
              {range.padded(0.15), series.unit, metric_title(series.key.metric)});
    // The middle half of all points: where this series usually lies.
    plot.band(analysis::quantile(ys, 0.25), analysis::quantile(ys, 0.75), color(Ink::kMuted, 0.10F));
    plot.level(analysis::median(ys), color(Ink::kMuted), "median");
    plot.line(xs, ys, color(Ink::kMuted, 0.5F), 1);
    ImDrawList* draw = ImGui::GetWindowDrawList();
    for (std::size_t i = 0; i < points.size(); ++i) {
      const bool is_a = points[i].run == session.selection.run;
      const bool is_b = points[i].run == session.selection.other;
      const std::uint32_t ink = color(is_a ? Ink::kRunA : is_b ? Ink::kRunB : Ink::kText, is_a || is_b ? 1.0F : 0.75F);
      if (std::isfinite(points[i].low) && std::isfinite(points[i].high)) {
        draw->AddLine(ImVec2(plot.x(xs[i]), plot.y(points[i].low)), ImVec2(plot.x(xs[i]), plot.y(points[i].high)), ink,
                      px(1.2F));
      }
      const std::vector<double> x = {xs[i]};
      const std::vector<double> y = {ys[i]};
      plot.points(x, y, ink, is_b ? Mark::kDiamond : Mark::kDot, is_a || is_b ? 4.5F : 2.6F);
      if (is_a || is_b) plot.label(xs[i], ys[i], ink, is_a ? "A" : "B");
    }
    if (!plot.hovered()) return;
    const double at = std::round(plot.value_x(ImGui::GetIO().MousePos.x));
    if (at < 0 || at >= static_cast<double>(points.size())) return;
    const SeriesPoint& point = points[static_cast<std::size_t>(at)];
    plot.cursor(at, color(Ink::kFaint));
    ImGui::BeginTooltip();
    heading(clean(point.run, 60));
    muted(utc_text(point.created_unix_ns) + " UTC");
    ImGui::TextUnformatted(quantity_text(point.value, series.unit).c_str());
    muted(fmt::format("{} .. {}, {} launch{}", quantity_text(point.low, series.unit),
                      quantity_text(point.high, series.unit), point.launches,
                      point.launches == 1 ? ": not evidence" : "es"));
    ImGui::EndTooltip();
    if (!plot.clicked()) return;
    if (ImGui::GetIO().KeyCtrl)
      session.select_other(point.run);
    else
      session.select_run(point.run);
  }

  static void draw_verdicts(Session& session) {
    const baselines::Cell* cell = session.cell_a();
    heading("verdicts of run A");
    if (cell == nullptr || cell->verdicts.empty()) return muted("none stored");
    for (const baselines::VerdictRow& row : cell->verdicts) {
      badge(verdict_text(row.verdict), color(verdict_ink(row.verdict)));
      ImGui::SameLine(px(110));
      ImGui::TextUnformatted(fmt::format("{} against {}{}", clean(row.subject, 60),
                                         clean(row.against.empty() ? "-" : row.against, 80),
                                         std::isfinite(row.change) ? "   " + percent_text(row.change, true) : "")
                                 .c_str());
      if (row.text.empty()) continue;
      ImGui::SameLine(0, px(12));
      muted(clean(row.text, 300));
    }
  }

  Query<std::vector<SeriesSummary>> list_;
  Query<std::vector<SeriesPoint>> points_;
  TableData data_;
  TableState state_;
  std::string built_;
  std::string chosen_;
};

}  // namespace

std::unique_ptr<Panel> make_history_panel() {
  return std::make_unique<HistoryPanel>();
}

}  // namespace mbb::viewer
