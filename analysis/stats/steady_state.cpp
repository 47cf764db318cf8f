// Finds where warm-up ends by tests against the second half of the series, and refuses a series that drifts.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/core.h>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/distributions.h"
#include "analysis/stats/stats.h"

namespace mbb::analysis {

namespace {

constexpr size_t kFewestSteps = 6;
constexpr size_t kWindow = 8;
constexpr double kAlpha = 0.001;
constexpr size_t kTrendPoints = 200;

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

// Medians of equal pieces, so that the quadratic trend test sees at most kTrendPoints points.
std::vector<double> thinned(std::span<const double> steps) {
  const size_t piece = (steps.size() + kTrendPoints - 1) / kTrendPoints;
  std::vector<double> points;
  for (size_t at = 0; at + piece <= steps.size(); at += piece) points.push_back(median(steps.subspan(at, piece)));
  return points;
}

// A drift: Kendall's test sees a trend (its variance inflated by the autocorrelation time of what is left when the
// Theil-Sen line is taken out), and the line changes by more than `material` over the series.
bool drifts(std::span<const double> steady, double material) {
  std::vector<double> points = thinned(steady);
  const size_t n = points.size();
  if (n < kFewestSteps) return false;
  std::vector<double> slopes;
  double concordant = 0.0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const double rise = points[j] - points[i];
      slopes.push_back(rise / static_cast<double>(j - i));
      concordant += rise > 0.0 ? 1.0 : rise < 0.0 ? -1.0 : 0.0;
    }
  }
  const double slope = median(slopes);
  if (std::abs(slope) * static_cast<double>(n) <= material * std::abs(median(points))) return false;
  for (size_t i = 0; i < n; ++i) points[i] -= slope * static_cast<double>(i);
  const auto count = static_cast<double>(n);
  const double variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0 * autocorrelation_time(points);
  return 2.0 * normal_cdf(-std::abs(concordant) / std::sqrt(variance)) < kAlpha;
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
  if (drifts(steady, options.drift_material)) {
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
