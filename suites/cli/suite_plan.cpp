// Describes the cells, looks their step time up, and sums.
#include "suites/cli/suite_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/planned_memory.h"
#include "baselines/store/store.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using baselines::CellStatus;
using baselines::ResultClass;

// Step times that the store holds of cells with the same identity.
class Remembered {
 public:
  static Result<Remembered> open(const RunOptions& options) {
    Remembered found;
    const auto file = store_file(options.runs_dir);
    if (!file_exists(file)) return found;
    MB_ASSIGN(auto store, baselines::Store::open(file, {.read_only = true}));
    MB_ASSIGN(found.all_, store.list_series());
    found.store_.emplace(std::move(store));
    return found;
  }

  // ns; nothing when the cell has not run.
  std::optional<double> step_ns(const baselines::Cell& cell) const {
    for (const baselines::SeriesSummary& series : all_) {
      if (series.key.identity_hash != cell.identity_hash || series.key.metric != "step_time") continue;
      const auto points = store_->series(series.key);
      if (points && !points->empty()) return points->back().value;
    }
    return std::nullopt;
  }

 private:
  std::vector<baselines::SeriesSummary> all_;
  std::optional<baselines::Store> store_;
};

// Of all steps and launches, in seconds; NaN where nothing is known.
Result<double> estimate(const Cell& planned, const baselines::Cell& cell, const Suite& suite, const RunOptions& options,
                        const Remembered& remembered) {
  if (cell.status != CellStatus::kOk) return baselines::kNotMeasured;
  std::optional<double> step_ns = remembered.step_ns(cell);
  if (!step_ns && options.project && planned.config.host.device == trainer::Device::kCuda) {
    MB_ASSIGN(const trainer::Layout layout, trainer::resolve(planned.config));
    MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
    baselines::Cell projected = cell;
    ProjectionBasis basis;
    if (options.project({layout, programs, hardware_of(suite, options), false}, projected, basis))
      if (const baselines::Metric* step = analysis::find(projected, "step_time")) step_ns = step->value;
  }
  if (!step_ns) return baselines::kNotMeasured;
  return *step_ns * 1e-9 * static_cast<double>(planned.config.train.train_iters) * options.launches;
}

std::string plan_of(const baselines::Cell& cell, const Cell& planned, const RunOptions& options) {
  if (cell.status != CellStatus::kOk)
    return fmt::format("{}{}{}", name(cell.status), cell.reason.empty() ? "" : ": ", cell.reason);
  if (cell.result_class == ResultClass::kProjected) return options.twins ? "project, and train its twin" : "project";
  const bool rule = options.steady_steps > 0 || options.interval_pct > 0 ||
                    (options.gpu_interval_pct > 0 && planned.config.host.device == trainer::Device::kCuda);
  return fmt::format("{} launch{} of {}{} steps", options.launches, options.launches == 1 ? "" : "es",
                     rule ? "at most " : "", planned.config.train.train_iters);
}

std::string duration(double seconds) {
  return std::isfinite(seconds) ? format_ns(seconds * 1e9) : "-";
}

}  // namespace

Result<SuitePlan> plan_of_suite(const Suite& suite, const RunOptions& options) {
  SuitePlan whole;
  analysis::Table& table = whole.table;
  table.id = "plan";
  table.title = fmt::format("{}: {}", suite.name, suite.purpose);
  table.columns = {{"cell", "cell"},
                   {"gpus", "GPUs", Align::kRight},
                   {"class", "class"},
                   {"peak_memory", "peak", Align::kRight, "bytes"},
                   {"time", "steps take", Align::kRight, "s"},
                   {"gpu_hours", "GPU-hours", Align::kRight, "h"},
                   {"plan", "plan"}};
  MB_ASSIGN(const Remembered remembered, Remembered::open(options));
  const std::vector<baselines::Cell> cells = describe_cells(suite, options);
  double seconds = 0, gpu_hours = 0;
  int unknown = 0, runs = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    baselines::Cell cell = cells[i];
    analysis::add_planned_memory(cell);
    const baselines::Metric* peak = analysis::find(cell, "peak_memory");
    MB_ASSIGN(const double time, estimate(suite.cells[i], cell, suite, options, remembered));
    const bool known = std::isfinite(time);
    const bool on_gpus = suite.cells[i].config.host.device == trainer::Device::kCuda;
    const double hours = known && on_gpus ? time / 3600 * cell.gpus : 0;
    whole.broken += cell.status == CellStatus::kBroken ? 1 : 0;
    if (cell.status == CellStatus::kOk) {
      ++runs;
      unknown += known ? 0 : 1;
      seconds += known && cell.result_class != ResultClass::kProjected ? time : 0;
      gpu_hours += hours;
    }
    table.rows.push_back({{{cell.name},
                           {std::to_string(cell.gpus), static_cast<double>(cell.gpus)},
                           {class_label(cell)},
                           {peak ? format_bytes(peak->value) : "-", peak ? peak->value : baselines::kNotMeasured},
                           {duration(time), time},
                           {known && on_gpus ? fmt::format("{:.2f}", hours) : "-", hours},
                           {plan_of(cell, suite.cells[i], options)}}});
  }
  std::string sum = fmt::format("{} of {} cells run", runs, cells.size());
  if (seconds > 0) sum += fmt::format("; their steps take {} here", duration(seconds));
  if (gpu_hours > 0) sum += fmt::format("; {:.1f} GPU-hours where the GPUs they ask for are", gpu_hours);
  if (unknown > 0) sum += fmt::format("; {} have not run yet and are not counted", unknown);
  table.footer.push_back(sum + ".");
  for (const Claim& claim : suite.claims)
    table.footer.push_back(fmt::format("claim {}: {} over {}", claim.name, claim.b, claim.a));
  for (const DroppedCell& cell : suite.dropped)
    table.footer.push_back(fmt::format("no cell: {} ({})", cell.name, cell.reason));
  return whole;
}

}  // namespace mbb::suites
