// The trend of a series, and where a drift of step times comes from: the clock or the work.
#pragma once

#include <limits>
#include <span>

namespace mbb::analysis {

// Of the Theil-Sen line over the whole series. `p`: of no trend, two-sided, by Kendall's test, its variance inflated by
// the autocorrelation time of what is left when the line is taken out, of a nearly monotone series each half's line.
struct Trend {
  double change = std::numeric_limits<double>::quiet_NaN();  // relative to the median, positive grows
  double p = 1;
};

// Needs six values; NaN and 1 with fewer.
Trend trend_of(std::span<const double> series);

enum class DriftCause {
  kNone,   // the times do not drift
  kClock,  // time times clock does not drift: the device slows or speeds up, its work stays
  kWork,   // cycles drift as well: the clock does not explain it
};

struct Drift {
  DriftCause cause = DriftCause::kNone;
  double time = 0;  // relative changes over the series
  double clock = 0;
  double cycles = 0;
};

// Step times and the clock during each step, as many, in any unit. A trend under `material` is none.
Drift drift_of(std::span<const double> times, std::span<const double> clocks, double material = 0.005);

}  // namespace mbb::analysis
