// Trends of made series, and drifts with and without a clock that explains them.
#include "analysis/stats/trend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "analysis/gate/simulated_nights.h"

namespace mbb::analysis {
namespace {

// `change` from the first value to the last, with noise of `sigma`.
std::vector<double> line(size_t count, double change, double sigma, SimulatedNoise& noise) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    const double at = static_cast<double>(i) / static_cast<double>(count - 1);
    values.push_back(100 * (1 + change * at) * (1 + sigma * noise.heavy(4)));
  }
  return values;
}

TEST(Trend, FindsALineUnderHeavyTails) {
  SimulatedNoise noise(1);
  for (const size_t count : {40U, 400U, 5000U}) {
    const std::vector<double> series = line(count, 0.03, 0.005, noise);
    const Trend trend = trend_of(series);
    EXPECT_NEAR(trend.change, 0.03, 0.008) << count;
    EXPECT_LT(trend.p, 0.001) << count;
  }
}

TEST(Trend, OfNoiseAloneIsSeldomCalledOne) {
  SimulatedNoise noise(2);
  int called = 0;
  for (int i = 0; i < 300; ++i) called += trend_of(line(60, 0, 0.02, noise)).p < 0.01 ? 1 : 0;
  EXPECT_LE(called, 10) << "about 3 are expected";
}

TEST(Trend, ABendIsATrendAndNoiseThatLastsIsNone) {
  SimulatedNoise noise(3);
  std::vector<double> grows;
  for (int i = 0; i < 40; ++i) grows.push_back(100 * std::pow(1.02, i));
  EXPECT_LT(trend_of(grows).p, 0.001);
  int called = 0;
  for (int i = 0; i < 300; ++i) called += trend_of(wandering_series(60, 0.6, 0.005, noise)).p < 0.001 ? 1 : 0;
  EXPECT_LE(called, 9) << "of 300 that have 60 steps, worth 15: a drift must be 2 % as well";
}

TEST(Trend, ShortAndConstantSeries) {
  EXPECT_TRUE(std::isnan(trend_of(std::vector<double>{1, 2, 3}).change));
  EXPECT_EQ(trend_of(std::vector<double>(20, 5.0)).change, 0);
}

TEST(Drift, TimeAndCyclesAreToldApart) {
  SimulatedNoise noise(3);
  for (int i = 0; i < 50; ++i) {
    const std::vector<double> clock = line(100, -0.03, 0.0005, noise), steady = line(100, 0, 0.0005, noise);
    const std::vector<double> work = line(100, 0, 0.003, noise), grows = line(100, 0.03, 0.003, noise);
    const auto time = [](const std::vector<double>& cycles, const std::vector<double>& at) {
      std::vector<double> times;
      for (size_t s = 0; s < at.size(); ++s) times.push_back(cycles[s] / at[s]);
      return times;
    };
    EXPECT_EQ(drift_of(time(work, clock), clock).cause, DriftCause::kClock);
    EXPECT_EQ(drift_of(time(grows, steady), steady).cause, DriftCause::kWork);
    EXPECT_EQ(drift_of(time(grows, clock), clock).cause, DriftCause::kWork) << "half of it is the clock's";
    EXPECT_EQ(drift_of(time(work, steady), steady).cause, DriftCause::kNone);
  }
}

}  // namespace
}  // namespace mbb::analysis
