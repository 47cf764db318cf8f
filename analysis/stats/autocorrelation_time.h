// How many dependent samples are worth one independent one.
#pragma once

#include <span>

namespace mbb::analysis {

// Integrated autocorrelation time, >= 1, of the series' signs about its median: what the variance of a median is
// inflated by. Outliers weigh no more than other samples.
double autocorrelation_time(std::span<const double> values);

}  // namespace mbb::analysis
