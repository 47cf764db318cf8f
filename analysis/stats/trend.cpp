// Slopes of all pairs of thinned points.
#include "analysis/stats/trend.h"

#include <cmath>
#include <vector>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/distributions.h"
#include "analysis/stats/stats.h"
#include "profiler/base/check.h"

namespace mbb::analysis {

namespace {

constexpr size_t kFewest = 6;
constexpr size_t kMostPoints = 200;  // the test is quadratic
constexpr double kAlpha = 0.001;

// Medians of equal pieces.
std::vector<double> thinned(std::span<const double> series) {
  const size_t piece = (series.size() + kMostPoints - 1) / kMostPoints;
  std::vector<double> points;
  for (size_t at = 0; at + piece <= series.size(); at += piece) points.push_back(median(series.subspan(at, piece)));
  return points;
}

bool is_material(const Trend& trend, double material) {
  return std::abs(trend.change) > material && trend.p < kAlpha;
}

}  // namespace

Trend trend_of(std::span<const double> series) {
  Trend trend;
  if (series.size() < kFewest) return trend;
  std::vector<double> points = thinned(series);
  const size_t n = points.size();
  if (n < kFewest) return trend;
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
  const double centre = std::abs(median(points));
  const auto count = static_cast<double>(n);
  trend.change = slope == 0.0 ? 0.0 : slope * count / centre;
  for (size_t i = 0; i < n; ++i) points[i] -= slope * static_cast<double>(i);
  const double variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0 * autocorrelation_time(points);
  trend.p = 2.0 * normal_cdf(-std::abs(concordant) / std::sqrt(variance));
  return trend;
}

Drift drift_of(std::span<const double> times, std::span<const double> clocks, double material) {
  MB_CHECK(times.size() == clocks.size(), "drift_of: a clock for each step");
  std::vector<double> cycles;
  for (size_t i = 0; i < times.size(); ++i) cycles.push_back(times[i] * clocks[i]);
  const Trend time = trend_of(times), clock = trend_of(clocks), work = trend_of(cycles);
  Drift drift{DriftCause::kNone, time.change, clock.change, work.change};
  if (!is_material(time, material)) return drift;
  // What is left of the drift in cycles: under a third of it is no drift of its own.
  const bool cycles_too = is_material(work, material) && std::abs(work.change) > std::abs(time.change) / 3.0;
  drift.cause = cycles_too ? DriftCause::kWork : DriftCause::kClock;
  return drift;
}

}  // namespace mbb::analysis
