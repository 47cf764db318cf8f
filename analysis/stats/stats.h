// What step times and launches say: medians with intervals that know autocorrelation, where the steady state begins,
// intervals over launches, and the difference of two arms. Deterministic: nothing here draws random numbers.
//
// Evidence counts launches. Steps of one launch share its clocks, placement and memory layout, so an interval over the
// steps of one launch says how well that launch is known, not how the next one will run.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace mbb::analysis {

// Under so many steps there is no steady state, and no interval of their median.
inline constexpr size_t kFewestSteps = 6;
inline constexpr double kLevel = 0.95;  // of every interval, unless a caller says otherwise

double mean(std::span<const double> values);                // NaN when empty
double standard_deviation(std::span<const double> values);  // n - 1 below; NaN under two values
double median(std::span<const double> values);              // NaN when empty
double quantile(std::span<const double> values, double p);  // linear between order statistics; NaN when empty
// Median absolute deviation × 1.4826: a standard deviation that outliers do not move. NaN when empty.
double mad_sigma(std::span<const double> values);
double autocorrelation(std::span<const double> values, size_t lag);  // 0 for a constant or too short series

// A value with an interval. `low` and `high` are NaN when there is none.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
  double level = kLevel;
  size_t samples = 0;        // what was counted: steps or launches
  double effective = 0;      // independent samples they are worth
  double sigma = 0;          // of one sample, in the value's unit; NaN when unknown
  bool is_evidence = false;  // the interval is over at least two launches

  bool has_interval() const { return low <= high; }
};

// Median of a stationary series. The interval is from order statistics (exact for independent samples of any
// distribution) at ranks n/2 ± t·sqrt(n·tau)/2, where tau is the integrated autocorrelation time of the series' signs
// about its median, corrected for its small-sample bias and never below 1. Samples may be few: under 6 there is no
// interval.
Estimate median_of_steps(std::span<const double> steps, double level = kLevel);

// Mean of the launches' medians with Student's t. One launch: its value without an interval, is_evidence false.
Estimate over_launches(std::span<const double> launch_medians, double level = kLevel);

// Where warm-up ends. The head of the series is cut step by step while the step is an outlier of the second half, or
// while a window that starts there differs from it by a rank-sum test (p < 0.001, variance inflated by tau); a change
// under `material` (relative) is not cut. What is left is then tested for a drift: a trend of more than
// `drift_material` over its length.
struct SteadyOptions {
  double material = 0.005;
  double drift_material = 0.02;
  double outlier_sigmas = 5.0;
};
struct SteadyState {
  bool found = false;
  size_t first = 0;    // index of the first steady step; the series' size when none is
  size_t stalls = 0;   // single outliers later on: counted, kept
  std::string reason;  // why it was not found; or what was cut, for a person
};
SteadyState find_steady_state(std::span<const double> steps, const SteadyOptions& options = {});

// arm B against arm A, each a list of launch medians.
struct Difference {
  Estimate absolute;  // mean B - mean A, Welch
  Estimate relative;  // mean B / mean A - 1, Welch on logarithms; NaN where a value is not positive
  double p = 1;       // two-sided, of no difference; 1 when it cannot be told
};
// With fewer than two launches in an arm there is a difference but no interval, and is_evidence is false.
Difference difference(std::span<const double> arm_a, std::span<const double> arm_b, double level = kLevel);

// How far positive values lie from the means of their own arms, as logarithms. Of many arms of few launches, alike but
// for their means, it is known far better than of two.
struct SharedSpread {
  double sigma = 0;
  double degrees = 0;  // under 1: nothing is known
};
SharedSpread spread_within(const std::vector<std::vector<double>>& arms);
// mean B / mean A - 1, with the interval that this spread gives; NaN where an arm is empty or has no positive value.
Estimate relative_difference(std::span<const double> arm_a, std::span<const double> arm_b, double level,
                             const SharedSpread& shared);

// Smallest relative change that `launches` launches an arm detect at two-sided alpha and power, given the relative
// launch sigma. NaN under two launches.
double detectable_change(double launch_sigma, size_t launches, double alpha = 0.05, double power = 0.9);

// Two-sided p of the Mann-Whitney rank-sum test (normal, ties corrected); `inflation` multiplies its variance.
double rank_sum_p(std::span<const double> a, std::span<const double> b, double inflation = 1.0);

}  // namespace mbb::analysis
