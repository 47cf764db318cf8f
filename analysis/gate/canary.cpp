// Medians of canaries, and what they explain.
#include "analysis/gate/canary.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

constexpr double kSmallest = 0.01;  // a canary that moved less says nothing
constexpr double kShare = 0.5;      // of the cell's change that the canary must show too

bool is_of_cpu(const baselines::Cell& cell) {
  return cell.result_class == baselines::ResultClass::kFunctionalCpu;
}

double median_of(const baselines::Cell& cell, const std::string& canary) {
  std::vector<double> times;
  for (const baselines::Launch& launch : cell.launches)
    for (const baselines::NamedCount& count : launch.counts)
      if ((count.name == canary + "_before_ns" || count.name == canary + "_after_ns") && count.count > 0)
        times.push_back(static_cast<double>(count.count));
  return median(times);
}

}  // namespace

CanaryTimes canary_times(const baselines::Cell& cell) {
  if (is_of_cpu(cell)) return {median_of(cell, "canary_arithmetic"), median_of(cell, "canary_memory")};
  return {median_of(cell, "canary_gpu_arithmetic"), median_of(cell, "canary_gpu_memory")};
}

std::string_view metric_of_canaries(const baselines::Cell& cell) {
  return is_of_cpu(cell) ? "cpu_step_time" : "step_time";
}

double machine_slowdown(const baselines::Cell& then, const baselines::Cell& now) {
  if (is_of_cpu(then) != is_of_cpu(now)) return 0;
  const CanaryTimes was = canary_times(then), is = canary_times(now);
  double slowdown = 0;
  for (const double change : {is.arithmetic_ns / was.arithmetic_ns - 1.0, is.memory_ns / was.memory_ns - 1.0})
    if (std::isfinite(change)) slowdown = std::max(slowdown, change);
  return slowdown;
}

bool explains(double slowdown, double change) {
  return slowdown >= kSmallest && slowdown >= kShare * change;
}

}  // namespace mbb::analysis
