// Values of 0 or below, such as a loss of another trainer: the judge takes logarithms, and these have none.
#pragma once

#include <string>
#include <vector>

#include "analysis/gate/judge.h"

namespace mbb::analysis {

// What such a series is judged by: 1 + (value - centre) / unit, where `centre` is the baseline's and `unit` its
// magnitude. So 1 % is a hundredth of the baseline, as it is among ratios; of a baseline that itself has values of 0 or
// below, where the unit is at least 1, a difference of 0.01 if that is more.
struct Differences {
  double centre = 0;
  double unit = 0;  // 0: all values are positive, and ratios are what counts

  explicit operator bool() const { return unit > 0; }
  NightLaunches of(const NightLaunches& values) const;  // as they are, where ratios count
};

// Of a series' baseline, where any value of it or of `others` is 0 or below and the metric is a loss: a time of 0 is an
// error.
Differences differences_of(const std::string& metric, const std::vector<NightLaunches>& baseline,
                           const std::vector<NightLaunches>& others);

}  // namespace mbb::analysis
