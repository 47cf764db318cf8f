// How near a narrow recipe's losses must stay to fp32's: within twice the distance that the oracle itself has.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "trainer/run/train.h"

namespace mbb::trainer {

inline std::vector<double> losses_of(const std::vector<StepReport>& steps) {
  std::vector<double> losses;
  for (const StepReport& step : steps) losses.push_back(step.loss);
  return losses;
}

// The largest relative difference of losses `a` from the losses `b`; infinite where they are not as many, or none.
inline double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() && !a.empty() ? 0.0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double distance = std::abs(a[i] - b[i]) / b[i];
    most = std::isnan(distance) ? INFINITY : std::max(most, distance);
  }
  return most;
}

// The oracle's: the largest over several first states, since one of them may lie near by chance (of a family's eight
// the least is up to eleven times nearer than the largest). `losses` trains a configuration on the oracle.
template <class Losses>
double own_distance(Config exact, Config narrow, const Losses& losses) {
  constexpr int kDraws = 6;
  double most = 0.0;
  for (int draw = 0; draw < kDraws; ++draw, ++exact.train.seed, ++narrow.train.seed)
    most = std::max(most, furthest(losses(narrow), losses(exact)));
  return most;
}

// What fp32 itself is allowed is the least; nothing is near where the oracle did not train.
inline double near_fp32_bound(double own) {
  return std::isfinite(own) ? std::max(2.0 * own, 1e-4) : 0.0;
}

}  // namespace mbb::trainer
