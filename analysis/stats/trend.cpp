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
constexpr double kMonotone = 0.8;  // Kendall's coefficient

// Medians of equal pieces.
std::vector<double> thinned(std::span<const double> series) {
  const size_t piece = (series.size() + kMostPoints - 1) / kMostPoints;
  std::vector<double> points;
  for (size_t at = 0; at + piece <= series.size(); at += piece) points.push_back(median(series.subspan(at, piece)));
  return points;
}

struct Line {
  double slope = 0;
  double concordant = 0;  // pairs that rise less those that fall
};

// Theil-Sen: the median slope of all pairs.
Line line_of(std::span<const double> points) {
  Line line;
  std::vector<double> slopes;
  for (size_t i = 0; i < points.size(); ++i) {
    for (size_t j = i + 1; j < points.size(); ++j) {
      const double rise = points[j] - points[i];
      slopes.push_back(rise / static_cast<double>(j - i));
      line.concordant += rise > 0.0 ? 1.0 : rise < 0.0 ? -1.0 : 0.0;
    }
  }
  line.slope = median(slopes);
  return line;
}

// Without its line; `pieces` of it each without its own.
std::vector<double> without_lines(std::span<const double> points, size_t pieces) {
  std::vector<double> rest;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t begin = points.size() * i / pieces, end = points.size() * (i + 1) / pieces;
    const std::span<const double> part = points.subspan(begin, end - begin);
    const double slope = line_of(part).slope;
    std::vector<double> level;
    for (size_t at = 0; at < part.size(); ++at) level.push_back(part[at] - slope * static_cast<double>(at));
    const double centre = median(level);
    for (const double value : level) rest.push_back(value - centre);
  }
  return rest;
}

bool is_material(const Trend& trend, double material) {
  return std::abs(trend.change) > material && trend.p < kAlpha;
}

}  // namespace

Trend trend_of(std::span<const double> series) {
  Trend trend;
  if (series.size() < kFewest) return trend;
  const std::vector<double> points = thinned(series);
  if (points.size() < kFewest) return trend;
  const Line line = line_of(points);
  const auto count = static_cast<double>(points.size());
  trend.change = line.slope == 0.0 ? 0.0 : line.slope * count / std::abs(median(points));
  const double pairs = count * (count - 1.0) / 2.0;
  // A trend that bends is not noise that lasts: where nearly all pairs rise, what is left is of two lines.
  const size_t pieces = std::abs(line.concordant) > kMonotone * pairs ? 2 : 1;
  const double variance = pairs * (2.0 * count + 5.0) / 9.0 * autocorrelation_time(without_lines(points, pieces));
  trend.p = 2.0 * normal_cdf(-std::abs(line.concordant) / std::sqrt(variance));
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
