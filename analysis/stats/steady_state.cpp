// Finds where warm-up ends by tests against the second half of the series, and refuses a series that drifts.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/core.h>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/stats.h"
#include "analysis/stats/trend.h"

namespace mbb::analysis {

namespace {

constexpr size_t kWindow = 8;
constexpr double kAlpha = 0.001;

struct Reference {
  std::span<const double> steps;
  double centre = 0;
  double sigma = 0;
  double tau = 1;
};

Reference reference_of(std::span<const double> steps) {
  return {steps, median(steps), mad_sigma(steps), autocorrelation_time(steps)};
}

bool is_outlier(double step, const Reference& to, const SteadyOptions& options) {
  const double away = std::abs(step - to.centre);
  return away > options.outlier_sigmas * to.sigma && away > options.material * std::abs(to.centre);
}

bool differs(std::span<const double> part, const Reference& from, double material) {
  const double change = std::abs(median(part) - from.centre);
  if (change <= material * std::abs(from.centre)) return false;
  return rank_sum_p(part, from.steps, from.tau) < kAlpha;
}

}  // namespace

SteadyState find_steady_state(std::span<const double> steps, const SteadyOptions& options) {
  SteadyState out{.found = false, .first = steps.size(), .stalls = 0, .reason = {}};
  if (steps.size() < kFewestSteps) {
    out.reason = fmt::format("{} steps are too few to tell warm-up from steady state; at least {} are needed",
                             steps.size(), kFewestSteps);
    return out;
  }
  if (!std::all_of(steps.begin(), steps.end(), [](double step) { return std::isfinite(step); })) {
    out.reason = "a step has no finite time";
    return out;
  }
  const size_t half = steps.size() / 2;
  const Reference tail = reference_of(steps.subspan(half));
  const size_t window = std::clamp<size_t>(steps.size() / 6, 3, kWindow);
  size_t first = 0;
  while (first < half &&
         (is_outlier(steps[first], tail, options) || differs(steps.subspan(first, window), tail, options.material)))
    ++first;
  if (first >= half) {
    out.reason = fmt::format("no steady state: the first {} of {} steps differ from the rest", half, steps.size());
    return out;
  }
  const auto steady = steps.subspan(first);
  if (const Trend trend = trend_of(steady); std::abs(trend.change) > options.drift_material && trend.p < kAlpha) {
    out.reason = fmt::format("no steady state: the steps drift by more than {:.1f} % after step {}",
                             100.0 * options.drift_material, first);
    return out;
  }
  out.found = true;
  out.first = first;
  const Reference whole = reference_of(steady);
  for (const double step : steady) out.stalls += is_outlier(step, whole, options) ? 1 : 0;
  if (first > 0) out.reason = fmt::format("{} warm-up steps cut", first);
  return out;
}

}  // namespace mbb::analysis
