// Differences on top of 1.
#include "analysis/gate/signed_values.h"

#include <algorithm>
#include <cmath>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

// Of what is better than the baseline by a unit or more, which no ratio can say.
constexpr double kLeast = 0.01;

bool has_signed(const std::vector<NightLaunches>& nights) {
  return std::any_of(nights.begin(), nights.end(), [](const NightLaunches& night) {
    return std::any_of(night.begin(), night.end(), [](double value) { return value <= 0.0; });
  });
}

}  // namespace

NightLaunches Differences::of(const NightLaunches& values) const {
  NightLaunches out = values;
  if (unit > 0)
    for (double& value : out) value = std::max(kLeast, 1.0 + (value - centre) / unit);
  return out;
}

Differences differences_of(const std::string& metric, const std::vector<NightLaunches>& baseline,
                           const std::vector<NightLaunches>& others) {
  if (metric != "last_loss") return {};
  NightLaunches all;
  for (const NightLaunches& night : baseline) all.insert(all.end(), night.begin(), night.end());
  if (all.empty() || !(has_signed(baseline) || has_signed(others))) return {};
  const double centre = median(all);
  return {centre, has_signed(baseline) ? std::max(1.0, std::abs(centre)) : centre};
}

}  // namespace mbb::analysis
