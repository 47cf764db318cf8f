// The few distribution functions intervals and tests need, exact to about 1e-10.
#pragma once

namespace mbb::analysis {

double normal_cdf(double x);
double normal_quantile(double p);  // 0 < p < 1

double student_t_cdf(double t, double degrees);       // degrees > 0, need not be whole
double student_t_quantile(double p, double degrees);  // 0 < p < 1

// Two-sided: the t with P(|T| <= t) = level.
double student_t_two_sided(double level, double degrees);

// Regularized incomplete beta function I_x(a, b).
double incomplete_beta(double a, double b, double x);

}  // namespace mbb::analysis
