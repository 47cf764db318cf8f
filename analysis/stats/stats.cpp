// Medians, intervals over steps and launches, differences of two arms.
#include "analysis/stats/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/distributions.h"

namespace mbb::analysis {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kFewestForMedianInterval = 6;  // under it even min..max covers less than 95 %

std::vector<double> sorted(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  std::sort(copy.begin(), copy.end());
  return copy;
}

double quantile_of_sorted(const std::vector<double>& values, double p) {
  if (values.empty()) return kNaN;
  const double at = p * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  if (below + 1 >= values.size()) return values.back();
  const double part = at - static_cast<double>(below);
  return values[below] + part * (values[below + 1] - values[below]);
}

// Welch's difference of means from two samples, as an interval.
Estimate welch(std::span<const double> a, std::span<const double> b, double level, double& p) {
  Estimate out{.value = mean(b) - mean(a), .low = kNaN, .high = kNaN, .level = level};
  out.samples = std::min(a.size(), b.size());
  out.effective = static_cast<double>(out.samples);
  out.sigma = kNaN;
  p = 1.0;
  if (a.size() < 2 || b.size() < 2) return out;
  const double var_a = std::pow(standard_deviation(a), 2) / static_cast<double>(a.size());
  const double var_b = std::pow(standard_deviation(b), 2) / static_cast<double>(b.size());
  const double var = var_a + var_b;
  out.sigma = std::sqrt(var);
  out.is_evidence = true;
  if (var == 0.0) {  // launches repeat exactly (simulated ones do): the difference is exact
    out.low = out.high = out.value;
    p = out.value == 0.0 ? 1.0 : 0.0;
    return out;
  }
  const double degrees =
      var * var /
      (var_a * var_a / static_cast<double>(a.size() - 1) + var_b * var_b / static_cast<double>(b.size() - 1));
  const double half = student_t_two_sided(level, degrees) * out.sigma;
  out.low = out.value - half;
  out.high = out.value + half;
  p = 2.0 * (1.0 - student_t_cdf(std::abs(out.value) / out.sigma, degrees));
  return out;
}

std::vector<double> logarithms(std::span<const double> values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

bool all_positive(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value > 0.0; });
}

}  // namespace

double mean(std::span<const double> values) {
  if (values.empty()) return kNaN;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_deviation(std::span<const double> values) {
  if (values.size() < 2) return kNaN;
  const double middle = mean(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median(std::span<const double> values) {
  return quantile_of_sorted(sorted(values), 0.5);
}

double quantile(std::span<const double> values, double p) {
  return quantile_of_sorted(sorted(values), p);
}

double mad_sigma(std::span<const double> values) {
  const double middle = median(values);
  std::vector<double> away;
  for (const double value : values) away.push_back(std::abs(value - middle));
  return 1.4826 * median(away);
}

double autocorrelation(std::span<const double> values, size_t lag) {
  if (values.size() <= lag + 1) return 0.0;
  const double middle = mean(values);
  double whole = 0.0;
  double lagged = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    whole += (values[i] - middle) * (values[i] - middle);
    if (i + lag < values.size()) lagged += (values[i] - middle) * (values[i + lag] - middle);
  }
  return whole > 0.0 ? lagged / whole : 0.0;
}

Estimate median_of_steps(std::span<const double> steps, double level) {
  const std::vector<double> order = sorted(steps);
  const auto n = static_cast<double>(order.size());
  Estimate out{.value = quantile_of_sorted(order, 0.5), .low = kNaN, .high = kNaN, .level = level};
  out.samples = order.size();
  out.sigma = mad_sigma(steps);
  if (order.empty()) return out;
  const double tau = autocorrelation_time(steps);
  out.effective = n / tau;
  if (order.size() < kFewestForMedianInterval) return out;
  const double width = student_t_two_sided(level, std::max(1.0, out.effective - 1.0));
  const double half = 0.5 * width * std::sqrt(n * tau);
  // Ranks counted from 1; one rank of slack makes the binomial bound hold for independent samples.
  const double low = std::floor(0.5 * (n + 1.0) - half);
  const double high = std::ceil(0.5 * (n + 1.0) + half);
  out.low = order[static_cast<size_t>(std::clamp(low, 1.0, n)) - 1];
  out.high = order[static_cast<size_t>(std::clamp(high, 1.0, n)) - 1];
  return out;
}

Estimate over_launches(std::span<const double> launch_medians, double level) {
  Estimate out{.value = mean(launch_medians), .low = kNaN, .high = kNaN, .level = level};
  out.samples = launch_medians.size();
  out.effective = static_cast<double>(out.samples);
  out.sigma = standard_deviation(launch_medians);
  if (out.samples < 2) return out;
  const double half = student_t_two_sided(level, out.effective - 1.0) * out.sigma / std::sqrt(out.effective);
  out.low = out.value - half;
  out.high = out.value + half;
  out.is_evidence = true;
  return out;
}

Difference difference(std::span<const double> arm_a, std::span<const double> arm_b, double level) {
  Difference out;
  out.absolute = welch(arm_a, arm_b, level, out.p);
  if (arm_a.empty() || arm_b.empty() || !all_positive(arm_a) || !all_positive(arm_b)) {
    out.relative = {.value = kNaN, .low = kNaN, .high = kNaN, .level = level, .sigma = kNaN};
    return out;
  }
  double ignored = 1.0;
  out.relative = welch(logarithms(arm_a), logarithms(arm_b), level, ignored);
  // The centre is the ratio of means, so that it agrees with the absolute difference; the width comes from logarithms.
  const double centre = mean(arm_b) / mean(arm_a);
  const double log_centre = out.relative.value;
  if (out.relative.has_interval()) {
    out.relative.low = centre * std::exp(out.relative.low - log_centre) - 1.0;
    out.relative.high = centre * std::exp(out.relative.high - log_centre) - 1.0;
  }
  out.relative.value = centre - 1.0;
  return out;
}

SharedSpread spread_within(const std::vector<std::vector<double>>& arms) {
  SharedSpread spread;
  double squares = 0.0;
  for (const std::vector<double>& arm : arms) {
    if (arm.size() < 2 || !all_positive(arm)) continue;
    const auto degrees = static_cast<double>(arm.size() - 1);
    squares += degrees * std::pow(standard_deviation(logarithms(arm)), 2);
    spread.degrees += degrees;
  }
  if (spread.degrees > 0) spread.sigma = std::sqrt(squares / spread.degrees);
  return spread;
}

Estimate relative_difference(std::span<const double> arm_a, std::span<const double> arm_b, double level,
                             const SharedSpread& shared) {
  Estimate out{.value = kNaN, .low = kNaN, .high = kNaN, .level = level, .sigma = kNaN};
  if (arm_a.empty() || arm_b.empty() || !all_positive(arm_a) || !all_positive(arm_b)) return out;
  out.samples = std::min(arm_a.size(), arm_b.size());
  out.effective = static_cast<double>(out.samples);
  const double ratio = mean(arm_b) / mean(arm_a);
  out.value = ratio - 1.0;
  if (shared.degrees < 1.0) return out;
  out.is_evidence = true;
  out.sigma =
      shared.sigma * std::sqrt(1.0 / static_cast<double>(arm_a.size()) + 1.0 / static_cast<double>(arm_b.size()));
  const double half = student_t_two_sided(level, shared.degrees) * out.sigma;
  out.low = ratio * std::exp(-half) - 1.0;
  out.high = ratio * std::exp(half) - 1.0;
  return out;
}

double detectable_change(double launch_sigma, size_t launches, double alpha, double power) {
  if (launches < 2 || !(launch_sigma >= 0.0)) return kNaN;
  const double degrees = 2.0 * static_cast<double>(launches) - 2.0;
  const double reach = student_t_quantile(1.0 - 0.5 * alpha, degrees) + student_t_quantile(power, degrees);
  return reach * launch_sigma * std::sqrt(2.0 / static_cast<double>(launches));
}

double rank_sum_p(std::span<const double> a, std::span<const double> b, double inflation) {
  if (a.empty() || b.empty()) return 1.0;
  struct Item {
    double value;
    bool of_a;
  };
  std::vector<Item> all;
  for (const double value : a) all.push_back({value, true});
  for (const double value : b) all.push_back({value, false});
  std::sort(all.begin(), all.end(), [](const Item& x, const Item& y) { return x.value < y.value; });
  double rank_sum = 0.0;
  double ties = 0.0;
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end < all.size() && all[end].value == all[i].value) ++end;
    const auto count = static_cast<double>(end - i);
    const double rank = 0.5 * static_cast<double>(i + 1 + end);
    for (size_t j = i; j < end; ++j) rank_sum += all[j].of_a ? rank : 0.0;
    ties += count * count * count - count;
    i = end;
  }
  const auto n_a = static_cast<double>(a.size());
  const auto n_b = static_cast<double>(b.size());
  const double n = n_a + n_b;
  const double expected = 0.5 * n_a * (n + 1.0);
  const double variance = n_a * n_b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0))) * inflation;
  if (variance <= 0.0) return 1.0;
  const double away = std::max(0.0, std::abs(rank_sum - expected) - 0.5);
  return 2.0 * normal_cdf(-away / std::sqrt(variance));
}

}  // namespace mbb::analysis
