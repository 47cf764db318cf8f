// Panel "run": the cells of one run with their metrics, and the step times and losses of a cell's launches.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/pill.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using baselines::Cell;
using baselines::Launch;
using baselines::Run;
using baselines::Step;

// What the table shows, as far as it fits; the list beside the plots has all of them.
constexpr std::array<const char*, 8> kHeadline = {
    "step_time", "tokens_per_second_per_gpu", "mfu_bf16", "exposed_comm", "bubble", "peak_memory",
    "last_loss", "tokens_per_second"};
constexpr float kMetricWidth = 122;

TableCell cell_state(const ViewedRun& run, const Cell& cell) {
  if (run.going_on && run.unfinished.contains(cell.name)) return text_cell(running_text(cell), Ink::kAccent);
  return text_cell(status_text(cell.status), status_ink(cell.status));
}

// Cells that are planned and have not begun; their keys are empty, since there is nothing to look at.
void add_waiting(TableData& data, const ViewedRun& run) {
  if (!run.going_on) return;
  for (const std::string& name : run.planned_cells) {
    if (std::find(data.keys.begin(), data.keys.end(), name) != data.keys.end()) continue;
    std::vector<TableCell> row(data.columns.size());
    row[0] = text_cell(name, Ink::kMuted);
    row[1] = text_cell("\xC2\xB7 waiting", Ink::kMuted);
    data.rows.push_back(std::move(row));
    data.keys.emplace_back();
  }
}

TableData cells_table(const ViewedRun& run, std::size_t metric_columns) {
  TableData data;
  data.columns = {
      {"cell", "", Align::kLeft, 0, "One resolved configuration.", false},
      {"status", "", Align::kLeft, run.going_on ? 176.0F : 84.0F,
       "ok, skipped, broken or unstable; of a run that goes on also running and waiting.", false},
      {"class", "", Align::kLeft, 130, "Result classes never mix: measured, ghost, projected, functional/cpu.", false},
      {"launches", "", Align::kRight, 66, "Fresh process trees; evidence counts launches.", false}};
  std::vector<std::string> names;
  const std::vector<std::string> known = metric_names(run);
  for (const char* metric : kHeadline) {
    if (std::find(known.begin(), known.end(), metric) != known.end()) names.emplace_back(metric);
  }
  for (const std::string& metric : known) {
    if (std::find(names.begin(), names.end(), metric) == names.end()) names.push_back(metric);
  }
  if (names.size() > metric_columns) names.resize(metric_columns);
  for (const std::string& metric : names) {
    data.columns.push_back({metric_title(metric), "", Align::kRight, kMetricWidth, metric_meaning(metric), false});
  }
  const bool reasons =
      std::any_of(run.cells.begin(), run.cells.end(), [](const Cell& cell) { return !cell.reason.empty(); });
  if (reasons) data.columns.push_back({"reason", "", Align::kLeft, 0, "Why a cell was skipped or is broken.", false});
  for (const Cell& cell : run.cells) {
    std::vector<TableCell> row;
    row.push_back(text_cell(cell.name));
    row.push_back(cell_state(run, cell));
    row.push_back(text_cell(class_label(cell), Ink::kMuted));
    row.push_back(number_cell(std::to_string(cell.launches.size()), static_cast<double>(cell.launches.size())));
    for (const std::string& metric : names) row.push_back(metric_cell(analysis::find(cell, metric)));
    if (reasons) {
      row.push_back(text_cell(cell.reason, Ink::kMuted));
      row.back().hover = clean(cell.reason, 1000);
    }
    data.rows.push_back(std::move(row));
    data.keys.push_back(cell.name);
  }
  add_waiting(data, run);
  return data;
}

TableData metrics_table(const Cell& cell) {
  TableData data;
  data.columns = {{"metric", "", Align::kLeft, 0, "Hover over a name for its definition.", false},
                  {"value", "", Align::kRight, 132, "\xC2\xB1 is half of its 95 % interval.", false}};
  for (const baselines::Metric& metric : cell.metrics) {
    data.rows.push_back({text_cell(metric_title(metric.name), Ink::kMuted), metric_cell(&metric)});
    data.rows.back()[0].hover = metric_meaning(metric.name);
    data.keys.push_back(metric.name);
  }
  return data;
}

TableData verdicts_table(const Cell& cell) {
  TableData data;
  data.columns = {{"verdict", "", Align::kLeft, 100, "\xE2\x96\xB2 slower, \xE2\x96\xBC faster.", false},
                  {"on", "", Align::kLeft, 0, "What was judged; hover for the reason.", false}};
  for (const baselines::VerdictRow& row : cell.verdicts) {
    data.rows.push_back({text_cell(verdict_text(row.verdict), verdict_ink(row.verdict)), text_cell(row.subject)});
    for (TableCell& one : data.rows.back()) one.hover = clean(row.text, 400);
    data.keys.push_back(row.subject);
  }
  return data;
}

struct Series {
  std::vector<double> index;
  std::vector<double> time_ns;
  std::vector<double> loss;
  std::vector<double> odd_index;  // warm-up and profiled steps: shown, not counted
  std::vector<double> odd_ns;
};

// `modelled`: the time replayed through the dependency graph instead of the wall clock.
Series series_of(const Launch& launch, bool modelled) {
  Series out;
  for (const Step& step : launch.steps) {
    out.index.push_back(static_cast<double>(step.index));
    out.loss.push_back(step.loss);
    const double time = static_cast<double>(modelled ? step.modelled_ns : step.wall_ns);
    const bool odd = (step.flags & (baselines::kStepWarmUp | baselines::kStepProfiled)) != 0;
    out.time_ns.push_back(odd ? std::nan("") : time);
    if (odd) {
      out.odd_index.push_back(static_cast<double>(step.index));
      out.odd_ns.push_back(time);
    }
  }
  return out;
}

const Step* step_at(const Launch& launch, double index) {
  const Step* best = nullptr;
  for (const Step& step : launch.steps) {
    if (best == nullptr ||
        std::fabs(static_cast<double>(step.index) - index) < std::fabs(static_cast<double>(best->index) - index)) {
      best = &step;
    }
  }
  return best;
}

class RunPanel : public Panel {
 public:
  void draw(Session& session) override {
    const ViewedRun* run = session.run_a.value();
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    if (session.selection.run.empty()) {
      if (session.runs.loading()) return draw_loading("reading the list of runs");
      return draw_empty("No run chosen", "Choose one in the list of runs (key 1).");
    }
    if (run == nullptr) return draw_loading("reading the run");
    draw_head(*run);
    if (run->cells.empty()) {
      return draw_empty("No cells yet", run->going_on ? "The run is still going; cells appear as they begin."
                                                      : "The run ended before a cell was done.");
    }
    draw_cells(session, *run);
    const Cell* cell = session.cell_a();
    if (cell != nullptr) draw_steps(session, *cell);
  }

 private:
  static void draw_head(const ViewedRun& run) {
    heading(clean(run.suite.empty() ? run.command : run.suite, 80));
    ImGui::SameLine(0, px(10));
    muted(fmt::format("{}   {} UTC", clean(run.id, 80), utc_text(run.created_unix_ns)));
    if (run.ended_unix_ns == 0) {
      ImGui::SameLine(0, px(10));
      badge(run.going_on ? "\xE2\x96\xB8 running" : "cut off", color(run.going_on ? Ink::kAccent : Ink::kWarning));
      hover_text(run.going_on ? "Followed as it is written: cells, launches and steps appear as they end."
                              : "The run has no end and no process writes it: `--resume` goes on with it.");
    }
    if (!run.synthetic.empty()) {
      ImGui::SameLine(0, px(10));
      badge("made up", color(Ink::kWarning));
      hover_text(clean(run.synthetic, 400));
    }
    probe_value("run.cells", static_cast<long long>(run.cells.size()));
    probe_value("run.unfinished", static_cast<long long>(run.unfinished.size()));
    probe_value("run.state", run.ended_unix_ns != 0 ? "ended" : run.going_on ? "running" : "cut off");
  }

  void draw_cells(Session& session, const ViewedRun& run) {
    const float fits = (ImGui::GetContentRegionAvail().x / scale() - 620) / (kMetricWidth + 14);
    const auto columns = static_cast<std::size_t>(std::clamp(fits, 1.0F, 12.0F));
    const std::string key = fmt::format("{}|{}", session.run_a.value_key(), columns);
    if (built_ != key) {
      data_ = cells_table(run, columns);
      built_ = key;
      state_.dirty = true;
    }
    TableLook look;
    const Cell* chosen = session.cell_a();
    look.selected = chosen != nullptr ? chosen->name : std::string();
    look.keyboard = true;
    look.height = std::min(table_height(std::min<std::size_t>(data_.rows.size(), 12)),
                           ImGui::GetContentRegionAvail().y / scale() * 0.5F);
    const TableEvents events = draw_table("cells", data_, state_, look);
    if (events.clicked && !data_.keys[*events.clicked].empty()) session.select_cell(data_.keys[*events.clicked]);
    if (events.opened) session.panel = "timeline";
  }

  void draw_steps(Session& session, const Cell& cell) {
    ImGui::Dummy(ImVec2(0, px(2)));
    heading(clean(cell.name, 100));
    ImGui::SameLine(0, px(10));
    muted(fmt::format("{}   {} launch{}", clean(class_label(cell), 80), cell.launches.size(),
                      cell.launches.size() == 1 ? "" : "es"));
    bool any = false;
    for (const Launch& launch : cell.launches) any = any || !launch.steps.empty();
    const Launch* chosen = session.launch_of(cell);
    probe_value("run.steps", chosen == nullptr ? 0 : static_cast<long long>(chosen->steps.size()));
    if (!any) {
      return draw_empty(cell.reason.empty() ? "No steps recorded" : clean(cell.reason, 400),
                        "Metrics need a launch that finished its steps.");
    }
    if (cell.result_class == baselines::ResultClass::kFunctionalCpu) {
      ImGui::SameLine(0, px(10));
      badge("functional/cpu: time is no performance claim", color(Ink::kWarning));
    }
    draw_clock_choice(cell);
    draw_launch_choice(session, cell);
    make_lists(session, cell);
    const float most = ImGui::GetContentRegionAvail().x * 0.3F;
    const float list = ImGui::GetContentRegionAvail().x > px(1000)
                           ? std::min(std::max(px(250), table_width(metrics_, metrics_state_)), most)
                           : 0;
    ImVec2 room = ImGui::GetContentRegionAvail();
    room.x -= list > 0 ? list + px(12) : 0;
    const bool wide = room.x > px(700);
    const ImVec2 size(wide ? (room.x - px(12)) * 0.62F : room.x, wide ? room.y - px(4) : room.y / 2 - px(6));
    draw_times(session, cell, size);
    if (wide) ImGui::SameLine(0, px(12));
    draw_losses(session, cell, ImVec2(wide ? room.x - size.x - px(12) : room.x, size.y));
    if (list <= 0) return;
    ImGui::SameLine(0, px(12));
    ImGui::BeginChild("metrics", ImVec2(list, 0), false);
    draw_metrics(session, cell);
    ImGui::EndChild();
  }

  void make_lists(const Session& session, const Cell& cell) {
    const std::string key = session.run_a.value_key() + "|" + cell.name;
    if (key == lists_of_) return;
    metrics_ = metrics_table(cell);
    verdicts_ = verdicts_table(cell);
    metrics_state_.dirty = verdicts_state_.dirty = true;
    lists_of_ = key;
  }

  void draw_metrics(Session& session, const Cell& cell) {
    if (cell.metrics.empty()) return muted(session.unfinished(cell) ? "metrics come when the cell ends" : "no metrics");
    TableLook look;
    look.selected = session.selection.metric;
    look.height = std::min(table_height(metrics_.rows.size()), ImGui::GetContentRegionAvail().y / scale() * 0.75F);
    const TableEvents events = draw_table("metrics", metrics_, metrics_state_, look);
    if (events.clicked) session.selection.metric = metrics_.keys[*events.clicked];
    if (events.opened) session.panel = "history";
    if (cell.verdicts.empty()) return;
    ImGui::Dummy(ImVec2(0, px(4)));
    draw_table("verdicts", verdicts_, verdicts_state_, {});
  }

  // Ranks that are threads share cores: their wall time says little, the modelled time says what the program would
  // take.
  void draw_clock_choice(const Cell& cell) {
    bool any = false;
    for (const Launch& launch : cell.launches) {
      for (const Step& step : launch.steps) any = any || step.modelled_ns > 0;
    }
    if (!any) {
      modelled_ = false;
      return;
    }
    ImGui::SameLine(0, px(14));
    if (pill(modelled_ ? "modelled time" : "wall time")) modelled_ = !modelled_;
    probe_item("run.clock");
    probe_value("run.clock", modelled_ ? "modelled" : "wall");
    hover_text("Wall: the slowest rank's clock. Modelled: CPU time of each op replayed through the dependency graph.");
  }

  // Which launch stands in front here, and which one the other panels show.
  static void draw_launch_choice(Session& session, const Cell& cell) {
    if (cell.launches.size() < 2) return;
    const Launch* chosen = session.launch_of(cell);
    ImGui::SameLine(0, px(14));
    muted("launch");
    for (std::size_t i = 0; i < cell.launches.size() && i < 12; ++i) {
      ImGui::SameLine(0, px(4));
      const bool on = &cell.launches[i] == chosen;
      if (pill(fmt::format("{}##launch", cell.launches[i].index), on))
        session.selection.launch = cell.launches[i].index;
      if (probe_recording()) probe_item(fmt::format("run.launch.{}", cell.launches[i].index));
    }
    probe_value("run.launch", chosen == nullptr ? -1 : chosen->index);
  }

  void draw_times(Session& session, const Cell& cell, ImVec2 size) {
    Range xs;
    Range ys;
    std::vector<Series> all;
    for (const Launch& launch : cell.launches) {
      all.push_back(series_of(launch, modelled_));
      for (const double value : all.back().index) xs.add(value);
      for (const double value : all.back().time_ns) ys.add(value);
    }
    ys = with_warm_up(ys, all);
    const Range shown{std::max(0.0, ys.padded(0.12).low), ys.padded(0.12).high};
    Plot plot("run.steps", size, {xs.padded(0.02), "step", "step"}, {shown, "ns", "step time"});
    const Launch* chosen = session.launch_of(cell);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool front = &cell.launches[i] == chosen;
      const std::uint32_t ink = color(Ink::kRunA, front ? 1.0F : 0.35F);
      plot.line(all[i].index, all[i].time_ns, ink, front ? 1.5F : 1.0F);
      plot.points(all[i].index, all[i].time_ns, ink, Mark::kDot, front ? 2.2F : 1.5F);
      for (double& value : all[i].odd_ns) value = std::min(value, ys.high);
      plot.points(all[i].odd_index, all[i].odd_ns, color(Ink::kMuted, front ? 0.9F : 0.4F), Mark::kCross, 2.5F);
    }
    const baselines::Metric* metric = analysis::find(cell, modelled_ ? "modelled_step_time" : "step_time");
    if (metric != nullptr) plot.level(metric->value, color(Ink::kMuted), "step time " + format_ns(metric->value));
    if (session.selection.step >= 0) plot.cursor(static_cast<double>(session.selection.step), color(Ink::kAccent));
    if (!plot.hovered() || chosen == nullptr) return;
    const Step* step = step_at(*chosen, plot.value_x(ImGui::GetIO().MousePos.x));
    if (step == nullptr) return;
    plot.cursor(static_cast<double>(step->index), color(Ink::kFaint));
    if (plot.clicked()) session.selection.step = step->index;
    ImGui::BeginTooltip();
    ImGui::Text("launch %d, step %lld", chosen->index, static_cast<long long>(step->index));
    ImGui::TextUnformatted(
        fmt::format("wall {}{}", format_ns(static_cast<double>(step->wall_ns)),
                    step->modelled_ns > 0 ? "   modelled " + format_ns(static_cast<double>(step->modelled_ns)) : "")
            .c_str());
    if (std::isfinite(step->loss)) ImGui::Text("loss %.5f", step->loss);
    if ((step->flags & baselines::kStepWarmUp) != 0) muted("warm-up: not part of any metric");
    if ((step->flags & baselines::kStepProfiled) != 0) muted("profiled: never timed");
    ImGui::EndTooltip();
  }

  // Warm-up steps may be many times slower; they may stretch the axis a little; beyond its end they stand on its edge.
  static Range with_warm_up(Range steady, const std::vector<Series>& all) {
    Range out = steady;
    for (const Series& series : all) {
      for (const double value : series.odd_ns) {
        out.add(steady.empty() ? value : std::min(value, steady.high + (steady.high - steady.low) * 0.6));
      }
    }
    return out;
  }

  void draw_losses(Session& session, const Cell& cell, ImVec2 size) {
    const Launch* chosen = session.launch_of(cell);
    if (chosen == nullptr) return;
    const Series series = series_of(*chosen, false);
    Range xs;
    Range ys;
    for (const double value : series.index) xs.add(value);
    for (const double value : series.loss) ys.add(value);
    Plot plot("run.loss", size, {xs.padded(0.02), "step", "step"}, {ys.padded(0.08), "", "loss"});
    plot.line(series.index, series.loss, color(Ink::kRunA));
    if (ys.empty()) plot.label(xs.low, 0.5, color(Ink::kMuted), "no losses recorded");
    if (session.selection.step >= 0) plot.cursor(static_cast<double>(session.selection.step), color(Ink::kAccent));
  }

  TableData data_;
  TableState state_;
  std::string built_;
  TableData metrics_;
  TableState metrics_state_;
  TableData verdicts_;
  TableState verdicts_state_;
  std::string lists_of_;
  bool modelled_ = false;
};

}  // namespace

std::unique_ptr<Panel> make_run_panel() {
  return std::make_unique<RunPanel>();
}

}  // namespace mbb::viewer
