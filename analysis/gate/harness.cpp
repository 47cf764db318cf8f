// Looks at every step once.
#include "analysis/gate/harness.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

// Steps a launch was to run; 0 when the cell does not say (a command of the user's).
int64_t planned_steps(const baselines::Cell& cell) {
  for (const baselines::KnobValue& knob : cell.knobs)
    if (knob.key == "train.train_iters") return parse_int(knob.value).value_or(0);
  return 0;
}

std::string error_of(const baselines::Launch& launch, int64_t planned) {
  if (launch.steps.empty()) return "no step was recorded";
  const std::vector<baselines::Step>& steps = launch.steps;
  // A user's command may log every n-th step, and no loss at all.
  const bool own = planned > 0;
  const int64_t stride = own || steps.size() < 2 ? 1 : steps[1].index - steps[0].index;
  const bool has_losses =
      own || std::any_of(steps.begin(), steps.end(), [](const auto& step) { return std::isfinite(step.loss); });
  for (size_t i = 0; i < steps.size(); ++i) {
    const baselines::Step& step = steps[i];
    const int64_t due = steps.front().index + static_cast<int64_t>(i) * stride;
    if (step.index != due) return fmt::format("step {} is missing: step {} stands in its place", due, step.index);
    if (has_losses && !std::isfinite(step.loss)) return fmt::format("the loss of step {} is {}", step.index, step.loss);
    if (step.wall_ns <= 0) return fmt::format("step {} has no time", step.index);
  }
  const auto recorded = static_cast<int64_t>(steps.size());
  if (own && recorded != planned) return fmt::format("{} of {} steps were recorded", recorded, planned);
  return "";
}

}  // namespace

std::string harness_error(const baselines::Cell& cell) {
  if (cell.launches.empty()) return "no launch was recorded";
  const int64_t planned = planned_steps(cell);
  for (const baselines::Launch& launch : cell.launches) {
    if (launch.exit_status != 0 || launch.signal != 0) continue;  // its failure is told by the cell's status
    if (const std::string error = error_of(launch, planned); !error.empty())
      return fmt::format("launch {}: {}", launch.index, error);
  }
  return "";
}

}  // namespace mbb::analysis
