// Normal and Student t distribution functions and their inverses.
#include "analysis/stats/distributions.h"

#include <cmath>

#include "profiler/base/check.h"

namespace mbb::analysis {

namespace {

// Continued fraction of the incomplete beta function by Lentz's method.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kTerms = 500;
  double c = 1.0;
  double d = 1.0 - (a + b) * x / (a + 1.0);
  d = 1.0 / (std::abs(d) < kTiny ? kTiny : d);
  double value = d;
  const auto step = [&](double coefficient) {
    d = 1.0 + coefficient * d;
    d = 1.0 / (std::abs(d) < kTiny ? kTiny : d);
    c = 1.0 + coefficient / c;
    if (std::abs(c) < kTiny) c = kTiny;
    value *= d * c;
    return std::abs(d * c - 1.0);
  };
  for (int m = 1; m <= kTerms; ++m) {
    const double two_m = 2.0 * m;
    step(m * (b - m) * x / ((a + two_m - 1.0) * (a + two_m)));
    if (step(-(a + m) * (a + b + m) * x / ((a + two_m) * (a + two_m + 1.0))) < 1e-15) break;
  }
  return value;
}

}  // namespace

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

double normal_quantile(double p) {
  MB_CHECK(p > 0.0 && p < 1.0, "a quantile needs a probability strictly between 0 and 1");
  if (p > 0.5) return -normal_quantile(1.0 - p);
  double low = -40.0;
  double high = 0.0;
  for (int i = 0; i < 200 && high - low > 1e-14 * (1.0 - low); ++i) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0.0) return 0.0;
  if (x >= 1.0) return 1.0;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1.0) / (a + b + 2.0)) return front * beta_fraction(a, b, x) / a;
  return 1.0 - front * beta_fraction(b, a, 1.0 - x) / b;
}

double student_t_cdf(double t, double degrees) {
  MB_CHECK(degrees > 0.0, "Student's t needs positive degrees of freedom");
  const double tail = 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t));
  return t < 0.0 ? tail : 1.0 - tail;
}

double student_t_quantile(double p, double degrees) {
  MB_CHECK(p > 0.0 && p < 1.0, "a quantile needs a probability strictly between 0 and 1");
  if (p < 0.5) return -student_t_quantile(1.0 - p, degrees);
  double low = 0.0;
  double high = 1.0;
  while (student_t_cdf(high, degrees) < p && high < 1e12) high *= 2.0;
  for (int i = 0; i < 200 && high - low > 1e-13 * (1.0 + high); ++i) {
    const double middle = 0.5 * (low + high);
    (student_t_cdf(middle, degrees) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double student_t_two_sided(double level, double degrees) {
  return student_t_quantile(0.5 + 0.5 * level, degrees);
}

}  // namespace mbb::analysis
