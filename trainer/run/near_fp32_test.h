// How near a narrow recipe's losses must stay to fp32's: within twice the distance that the oracle itself has.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
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

// Several first states of a configuration, each trained in fp32 by the oracle: one alone may lie near by chance (of a
// family's states the least lies up to eleven times nearer than the largest). `losses` trains on the oracle.
template <class Losses>
class Fp32Draws {
 public:
  Fp32Draws(Config fp32, Losses losses, int draws = 12) : losses_(std::move(losses)) {
    for (int draw = 0; draw < draws; ++draw, ++fp32.train.seed) draws_.push_back(losses_(fp32));
  }
  const std::vector<double>& first() const { return draws_[0]; }

  // How far the oracle's own losses in a narrow recipe are from these at most.
  double own_distance(Config narrow) const {
    double most = 0.0;
    for (const auto& draw : draws_) most = std::max(most, furthest(losses_(narrow), draw)), ++narrow.train.seed;
    return most;
  }

 private:
  Losses losses_;
  std::vector<std::vector<double>> draws_;
};

// What fp32 itself is allowed is the least; nothing is near where the oracle did not train.
inline double near_fp32_bound(double own) {
  return std::isfinite(own) ? std::max(2.0 * own, 1e-4) : 0.0;
}

}  // namespace mbb::trainer
