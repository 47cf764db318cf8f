// What a finished run lacks, and its exit status.
#include <fmt/core.h>

#include <algorithm>

#include "analysis/metrics/cell_metrics.h"
#include "suites/runner/runner.h"

namespace mbb::suites {

using baselines::CellStatus;

std::vector<std::string> missing_results(const baselines::Run& run) {
  std::vector<std::string> lines;
  for (const std::string& planned : run.planned_cells) {
    const auto found =
        std::find_if(run.cells.begin(), run.cells.end(), [&](const auto& cell) { return cell.name == planned; });
    if (found == run.cells.end())
      lines.push_back(fmt::format("cell {} has no result", planned));
    else if (found->status == CellStatus::kOk && analysis::find(*found, "step_time") == nullptr)
      lines.push_back(fmt::format("cell {} is ok and has no step time", planned));
  }
  return lines;
}

int exit_status(const RunOutcome& outcome, bool require_measured) {
  if (outcome.stopped) return 75;
  const auto& cells = outcome.run.cells;
  const bool broken =
      std::any_of(cells.begin(), cells.end(), [](const auto& c) { return c.status == CellStatus::kBroken; });
  const bool measured =
      std::any_of(cells.begin(), cells.end(), [](const auto& c) { return c.status == CellStatus::kOk; });
  const bool unstable =
      std::any_of(cells.begin(), cells.end(), [](const auto& c) { return c.status == CellStatus::kUnstable; });
  // One configuration was asked for, and it did not run.
  const bool none_ran = outcome.run.command == "run" && !measured && !unstable;
  if (broken || none_ran || (require_measured && !measured) || !missing_results(outcome.run).empty()) return 4;
  return unstable ? 2 : 0;
}

}  // namespace mbb::suites
