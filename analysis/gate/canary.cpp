// Medians of canaries, and what they explain.
#include "analysis/gate/canary.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

constexpr double kSmallest = 0.01;  // a canary that moved less says nothing
constexpr double kShare = 0.5;      // of the cell's change that the canary must show too
constexpr std::string_view kCanary = "canary_", kGpuCanary = "canary_gpu", kBefore = "_before_ns", kAfter = "_after_ns";

bool is_of_cpu(const baselines::Cell& cell) {
  return cell.result_class == baselines::ResultClass::kFunctionalCpu;
}

double median_of(const baselines::Cell& cell, const std::string& canary) {
  std::vector<double> times;
  for (const baselines::Launch& launch : cell.launches)
    for (const baselines::NamedCount& count : launch.counts)
      if ((count.name == canary + std::string(kBefore) || count.name == canary + std::string(kAfter)) &&
          count.count > 0)
        times.push_back(static_cast<double>(count.count));
  return median(times);
}

}  // namespace

std::vector<std::string> canaries_of(const baselines::Launch& launch) {
  std::set<std::string> found;
  for (const baselines::NamedCount& count : launch.counts)
    for (const std::string_view end : {kBefore, kAfter})
      if (count.name.starts_with(kCanary) && count.name.ends_with(end))
        found.insert(count.name.substr(0, count.name.size() - end.size()));
  return {found.begin(), found.end()};
}

bool is_of_gpu(std::string_view canary) {
  return canary.starts_with(kGpuCanary);
}

std::string processor_of(std::string_view canary) {
  if (!is_of_gpu(canary)) return "the CPU";
  const std::string_view rest = canary.substr(kGpuCanary.size());
  const std::string_view number = rest.substr(0, rest.find('_'));
  return "GPU " + std::string(number.empty() ? "0" : number);
}

CanaryTimes canary_times(const baselines::Cell& cell) {
  if (is_of_cpu(cell)) return {median_of(cell, "canary_arithmetic"), median_of(cell, "canary_memory")};
  return {median_of(cell, "canary_gpu_arithmetic"), median_of(cell, "canary_gpu_memory")};
}

std::string_view metric_of_canaries(const baselines::Cell& cell) {
  return is_of_cpu(cell) ? "cpu_step_time" : "step_time";
}

Slowdown machine_slowdown(const baselines::Cell& then, const baselines::Cell& now) {
  if (is_of_cpu(then) != is_of_cpu(now)) return {};
  std::set<std::string> canaries;
  for (const baselines::Launch& launch : now.launches)
    for (std::string& canary : canaries_of(launch))
      if (is_of_gpu(canary) != is_of_cpu(now)) canaries.insert(std::move(canary));
  Slowdown most;
  for (const char* kind : {"_arithmetic", "_memory"}) {
    double was = 0, is = 0;
    std::string slowest;
    for (const std::string& canary : canaries) {
      const double before = median_of(then, canary), after = median_of(now, canary);
      if (!canary.ends_with(kind) || !std::isfinite(before) || !std::isfinite(after)) continue;
      was = std::max(was, before);
      if (after > is) is = after, slowest = canary;
    }
    if (was > 0 && is / was - 1.0 > most.by) most = {is / was - 1.0, processor_of(slowest)};
  }
  return most;
}

bool explains(double slowdown, double change) {
  return slowdown >= kSmallest && slowdown >= kShare * change;
}

}  // namespace mbb::analysis
