// Integrated autocorrelation time of a series' signs about its median.
#include "analysis/stats/autocorrelation_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/stats/stats.h"

namespace mbb::analysis {

double autocorrelation_time(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 4) return 1.0;
  const double middle = median(values);
  std::vector<double> signs(n);
  for (size_t i = 0; i < n; ++i) signs[i] = values[i] > middle ? 1.0 : values[i] < middle ? -1.0 : 0.0;
  // Sum lags in pairs while the pairs stay positive and do not grow (initial monotone sequence); each lag is corrected
  // for the bias that subtracting the estimated centre brings, about (1 + 3 rho)/n.
  const auto corrected = [&](size_t lag) {
    const double rho = autocorrelation(signs, lag);
    return std::min(1.0, rho + (1.0 + 3.0 * std::max(0.0, rho)) / static_cast<double>(n));
  };
  const double noise = 2.0 / std::sqrt(static_cast<double>(n));
  const bool constant = std::all_of(signs.begin(), signs.end(), [](double sign) { return sign == 0.0; });
  if (constant || autocorrelation(signs, 1) < -noise) return 1.0;  // nothing to inflate, or steps that alternate
  double tau = 1.0;
  double last_pair = 2.0;
  for (size_t lag = 1; lag + 1 < n / 2; lag += 2) {
    const double first = corrected(lag);
    const double pair = std::min(first + corrected(lag + 1), last_pair);
    if (pair <= 0.0) break;
    tau += 2.0 * pair;
    last_pair = pair;
  }
  return std::clamp(tau, 1.0, static_cast<double>(n) / 2.0);
}

}  // namespace mbb::analysis
