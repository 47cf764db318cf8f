// Tests of the statistics: known values, coverage of intervals on simulated dependent series, differences of arms.
#include "analysis/stats/stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/distributions.h"

namespace mbb::analysis {
namespace {

// A small generator of our own, so that the simulations are the same with every standard library.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed) {}
  double uniform() {  // (0, 1)
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return (static_cast<double>((z ^ (z >> 31U)) >> 11U) + 0.5) / 9007199254740992.0;
  }
  double normal() { return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform()); }
  // Stationary AR(1) around 100 with marginal standard deviation 1.
  std::vector<double> ar1(size_t count, double phi) {
    std::vector<double> series(count);
    double state = normal();
    for (double& value : series) {
      value = 100.0 + state;
      state = phi * state + std::sqrt(1.0 - phi * phi) * normal();
    }
    return series;
  }

 private:
  uint64_t state_;
};

double median_coverage(size_t steps, double phi) {
  Noise noise(42);
  constexpr int kRounds = 2000;
  int covered = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Estimate found = median_of_steps(noise.ar1(steps, phi));
    covered += found.low <= 100.0 && 100.0 <= found.high ? 1 : 0;
  }
  return static_cast<double>(covered) / kRounds;
}

TEST(Distributions, KnownValues) {
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-10);
  EXPECT_NEAR(normal_quantile(0.5), 0.0, 1e-12);
  EXPECT_NEAR(student_t_two_sided(0.95, 4), 2.7764451051977987, 1e-9);
  EXPECT_NEAR(student_t_two_sided(0.95, 1), 12.706204736432095, 1e-7);
  EXPECT_NEAR(student_t_two_sided(0.99, 30), 2.7499956535672249, 1e-9);
  EXPECT_NEAR(student_t_quantile(0.1, 7), -student_t_quantile(0.9, 7), 1e-12);
  EXPECT_NEAR(student_t_cdf(2.0, 10), 0.963305983, 1e-8);
  EXPECT_NEAR(student_t_two_sided(0.95, 1e6), 1.95996636, 1e-6);
}

TEST(Statistics, OrderStatisticsAndSpread) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_DOUBLE_EQ(median(values), 3);
  EXPECT_DOUBLE_EQ(quantile(values, 0.25), 2);
  EXPECT_DOUBLE_EQ(mad_sigma(values), 1.4826);
  EXPECT_DOUBLE_EQ(mean(values), 3);
  EXPECT_NEAR(standard_deviation(values), std::sqrt(2.5), 1e-12);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(standard_deviation(std::vector<double>{1.0})));
}

TEST(Statistics, AutocorrelationTimeGrowsWithDependence) {
  Noise noise(3);
  const double independent = autocorrelation_time(noise.ar1(2000, 0.0));
  const double dependent = autocorrelation_time(noise.ar1(2000, 0.8));
  EXPECT_LT(independent, 1.3);
  // Signs of a Gaussian AR(1): 1 + 2 Σ (2/π) asin(0.8^k) = 6.1.
  EXPECT_NEAR(dependent, 6.1, 1.5);
  EXPECT_DOUBLE_EQ(autocorrelation_time(std::vector<double>(50, 7.0)), 1.0);
  std::vector<double> alternating(50);
  for (size_t i = 0; i < 50; ++i) alternating[i] = i % 2 == 0 ? 1.0 : 2.0;
  EXPECT_DOUBLE_EQ(autocorrelation_time(alternating), 1.0);
}

// The claim of the footer: a 95 % interval covers the true median about 95 times in a hundred, dependent or not.
TEST(Statistics, MedianIntervalCoversOnDependentSeries) {
  for (const size_t steps : {20, 50, 200}) {
    for (const double phi : {0.0, 0.3, 0.6}) {
      const double coverage = median_coverage(steps, phi);
      RecordProperty("coverage", std::to_string(coverage));
      EXPECT_GT(coverage, steps == 20 && phi > 0.5 ? 0.90 : 0.93) << steps << " steps, phi " << phi;
      if (phi == 0.0) {
        EXPECT_LT(coverage, 0.995) << steps << " steps: the interval is wider than it needs to be";
      }
    }
  }
}

TEST(Statistics, AnIntervalThatIgnoresDependenceWouldFailTheSameTest) {
  Noise noise(42);
  int covered = 0;
  for (int round = 0; round < 1000; ++round) {
    const auto series = noise.ar1(50, 0.6);
    const double half = student_t_two_sided(0.95, 49) * standard_deviation(series) / std::sqrt(50.0);
    covered += std::abs(mean(series) - 100.0) <= half ? 1 : 0;
  }
  EXPECT_LT(covered, 750);  // 95 % claimed, under 75 % kept: what the autocorrelation time is for
}

TEST(Statistics, FewStepsHaveNoInterval) {
  EXPECT_FALSE(median_of_steps(std::vector<double>{1, 2, 3, 4, 5}).has_interval());
  EXPECT_TRUE(median_of_steps(std::vector<double>{1, 2, 3, 4, 5, 6}).has_interval());
  EXPECT_FALSE(median_of_steps({}).has_interval());
}

TEST(Statistics, LaunchIntervalCoversAndOneLaunchIsNoEvidence) {
  Noise noise(5);
  constexpr int kRounds = 4000;
  int covered = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> launches(5);
    for (double& launch : launches) launch = 100.0 + 0.36 * noise.normal();
    const Estimate found = over_launches(launches);
    EXPECT_TRUE(found.is_evidence);
    covered += found.low <= 100.0 && 100.0 <= found.high ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(covered) / kRounds, 0.95, 0.012);
  const Estimate one = over_launches(std::vector<double>{100.0});
  EXPECT_DOUBLE_EQ(one.value, 100.0);
  EXPECT_FALSE(one.is_evidence);
  EXPECT_FALSE(one.has_interval());
}

TEST(Statistics, DifferenceOfArms) {
  const std::vector<double> slow = {200, 201, 199, 200.5, 199.5};
  const std::vector<double> fast = {180, 180.5, 179.5, 181, 179};
  const Difference change = difference(slow, fast);
  EXPECT_NEAR(change.absolute.value, -20.0, 1e-9);
  EXPECT_LT(change.absolute.high, -18.0);
  EXPECT_NEAR(change.relative.value, -0.1, 1e-9);
  EXPECT_LT(change.relative.low, -0.1);
  EXPECT_GT(change.relative.high, -0.11);
  EXPECT_LT(change.p, 1e-6);
  const Difference single = difference(std::vector<double>{200}, fast);
  EXPECT_FALSE(single.absolute.is_evidence);
  EXPECT_FALSE(single.absolute.has_interval());
  EXPECT_NEAR(single.absolute.value, -20.0, 1e-9);
  const Difference exact = difference(std::vector<double>{5, 5}, std::vector<double>{5, 5});
  EXPECT_EQ(exact.absolute.low, 0.0);
  EXPECT_EQ(exact.p, 1.0);
  EXPECT_TRUE(std::isnan(difference(std::vector<double>{0, 1}, fast).relative.value));
}

TEST(Statistics, DifferenceRarelyAccusesEqualArms) {
  Noise noise(9);
  constexpr int kRounds = 4000;
  int accused = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> a(5);
    std::vector<double> b(8);
    for (double& value : a) value = 100.0 + 0.5 * noise.normal();
    for (double& value : b) value = 100.0 + 0.2 * noise.normal();
    accused += difference(a, b).p < 0.05 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(accused) / kRounds, 0.05, 0.015);
}

TEST(Statistics, ManyArmsOfTwoLaunchesTellTheSpreadAndRarelyAccuseEqualOnes) {
  Noise noise(10);
  constexpr int kRounds = 2000;
  int accused = 0;
  double width = 0.0, width_alone = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<double>> arms(10, std::vector<double>(2));
    for (size_t arm = 0; arm < arms.size(); ++arm)
      for (double& value : arms[arm]) value = static_cast<double>(arm + 1) * (1.0 + 0.01 * noise.normal());
    for (double& value : arms[1]) value /= 2.0;
    const SharedSpread shared = spread_within(arms);
    EXPECT_DOUBLE_EQ(shared.degrees, 10.0);
    const Estimate change = relative_difference(arms[0], arms[1], kLevel, shared);
    accused += change.low > 0 || change.high < 0 ? 1 : 0;
    width += (change.high - change.low) / kRounds;
    const Estimate alone = difference(arms[0], arms[1]).relative;
    width_alone += (alone.high - alone.low) / kRounds;
  }
  EXPECT_NEAR(static_cast<double>(accused) / kRounds, 0.05, 0.02);
  EXPECT_LT(width, 0.6 * width_alone);
  EXPECT_FALSE(relative_difference(std::vector<double>{1}, std::vector<double>{2}, kLevel, {}).has_interval());
  EXPECT_TRUE(std::isnan(relative_difference({}, std::vector<double>{2}, kLevel, {1, 4}).value));
}

TEST(Statistics, DetectableChangeShrinksWithLaunches) {
  EXPECT_TRUE(std::isnan(detectable_change(0.0036, 1)));
  EXPECT_GT(detectable_change(0.0036, 3), detectable_change(0.0036, 8));
  // Two-sided alpha 0.01, power 0.9, sigma 0.36 %: six launches an arm see 1 %, four do not.
  EXPECT_LT(detectable_change(0.0036, 6, 0.01, 0.9), 0.0102);
  EXPECT_GT(detectable_change(0.0036, 4, 0.01, 0.9), 0.0102);
}

TEST(Statistics, RankSumSeesAShiftAndTies) {
  const std::vector<double> low = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<double> high = {11, 12, 13, 14, 15, 16, 17, 18};
  EXPECT_LT(rank_sum_p(low, high), 0.001);
  EXPECT_GT(rank_sum_p(low, low), 0.9);
  EXPECT_EQ(rank_sum_p(std::vector<double>{1, 1}, std::vector<double>{1, 1}), 1.0);
}

}  // namespace
}  // namespace mbb::analysis
