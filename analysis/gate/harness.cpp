// Looks at every step once.
#include "analysis/gate/harness.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using baselines::Cell;
using baselines::Launch;
using baselines::Step;

bool has_knob(const Cell& cell, std::string_view key) {
  return std::any_of(cell.knobs.begin(), cell.knobs.end(), [&](const auto& knob) { return knob.key == key; });
}

// What a launch of the cell owes.
struct Due {
  bool own = false;         // of the built-in trainer, which records every step with its loss
  bool has_losses = false;  // some launch has
  int64_t planned = 0;      // steps by their numbers; 0: nothing says
  int64_t recorded = 0;     // at least
};

Due due_of(const Cell& cell, int64_t steps_due) {
  Due due;
  const bool command = has_knob(cell, "command.run"), imported = has_knob(cell, "import.cell");
  for (const baselines::KnobValue& knob : cell.knobs)
    if (knob.key == "train.train_iters" && !imported) due.planned = parse_int(knob.value).value_or(0);
  due.own = due.planned > 0 && !command;
  due.recorded = std::max(steps_due, command ? steps_of(cell) : 0);
  // A user's command may print no loss at all.
  const auto finite = [](const Step& step) { return std::isfinite(step.loss); };
  due.has_losses = due.own || std::any_of(cell.launches.begin(), cell.launches.end(), [&](const Launch& launch) {
                     return std::any_of(launch.steps.begin(), launch.steps.end(), finite);
                   });
  return due;
}

std::string error_of(const Launch& launch, const Due& due) {
  if (launch.steps.empty()) return "no step was recorded";
  const std::vector<Step>& steps = launch.steps;
  const int64_t stride = due.own || steps.size() < 2 ? 1 : steps[1].index - steps[0].index;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const int64_t here = steps.front().index + static_cast<int64_t>(i) * stride;
    if (step.index != here) return fmt::format("step {} is missing: step {} stands in its place", here, step.index);
    if (due.has_losses && !std::isfinite(step.loss))
      return fmt::format("the loss of step {} is {}", step.index, step.loss);
    if (step.wall_ns <= 0) return fmt::format("step {} has no time", step.index);
  }
  const auto recorded = static_cast<int64_t>(steps.size());
  if (due.own) return recorded == due.planned ? "" : fmt::format("{} of {} steps were recorded", recorded, due.planned);
  const int64_t reached = std::max(steps.back().index, steps.back().index - steps.front().index + stride);
  if (due.planned > 0 && reached + stride < due.planned)
    return fmt::format("it ended at step {} of {}", reached, due.planned);
  if (recorded < due.recorded)
    return fmt::format("{} steps were recorded, where those it is held against have {}", recorded, due.recorded);
  return "";
}

}  // namespace

int64_t steps_of(const Cell& cell) {
  size_t most = 0;
  for (const Launch& launch : cell.launches) most = std::max(most, launch.steps.size());
  return static_cast<int64_t>(most);
}

std::string harness_error(const Cell& cell, int64_t steps_due) {
  if (cell.launches.empty()) return cell.reason.empty() ? "no launch was recorded" : cell.reason;
  const Due due = due_of(cell, steps_due);
  for (const Launch& launch : cell.launches) {
    if (launch.exit_status != 0 || launch.signal != 0) continue;  // its failure is told by the cell's status
    if (const std::string error = error_of(launch, due); !error.empty())
      return fmt::format("launch {}: {}", launch.index, error);
  }
  return "";
}

std::string no_evidence(const Cell& cell, int64_t steps_due) {
  if (cell.status == baselines::CellStatus::kOk) return harness_error(cell, steps_due);
  return cell.reason.empty() ? fmt::format("it is {}", name(cell.status)) : cell.reason;
}

bool is_same_launch(const Launch& a, const Launch& b) {
  constexpr size_t kFewestSteps = 3;
  const auto equal = [](const Step& x, const Step& y) {
    return x.index == y.index && x.wall_ns == y.wall_ns && x.cpu_ns == y.cpu_ns &&
           (x.loss == y.loss || (std::isnan(x.loss) && std::isnan(y.loss)));
  };
  return a.steps.size() >= kFewestSteps && a.started_unix_ns == b.started_unix_ns &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(), equal);
}

}  // namespace mbb::analysis
