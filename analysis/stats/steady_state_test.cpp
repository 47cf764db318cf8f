// Tests of steady-state detection: made series whose truth is known, and real step times of training tests.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

// Deterministic noise of about ±1 % around `centre`, without any order.
std::vector<double> noisy(size_t count, double centre, double amplitude = 0.01) {
  std::vector<double> series(count);
  uint32_t state = 12345;
  for (double& value : series) {
    state = state * 1664525U + 1013904223U;
    value = centre * (1.0 + amplitude * (static_cast<double>(state >> 8U) / 8388608.0 - 1.0));
  }
  return series;
}

TEST(SteadyState, CutsSlowFirstStepsAndNoMore) {
  auto steps = noisy(50, 100.0);
  steps[0] = 800;
  steps[1] = 130;
  steps[2] = 110;
  const SteadyState found = find_steady_state(steps);
  ASSERT_TRUE(found.found) << found.reason;
  EXPECT_EQ(found.first, 3u);
  EXPECT_EQ(found.stalls, 0u);
}

TEST(SteadyState, CutsAFastFirstStep) {
  auto steps = noisy(75, 81.0, 0.008);
  steps[0] = 77.0;  // clocks are still high
  const SteadyState found = find_steady_state(steps);
  ASSERT_TRUE(found.found) << found.reason;
  EXPECT_EQ(found.first, 1u);
}

TEST(SteadyState, ASteadySeriesIsNotCut) {
  const SteadyState found = find_steady_state(noisy(60, 5.0));
  ASSERT_TRUE(found.found);
  EXPECT_EQ(found.first, 0u);
  EXPECT_TRUE(found.reason.empty());
  EXPECT_TRUE(find_steady_state(std::vector<double>(20, 3.0)).found);
}

TEST(SteadyState, StallsAreCountedNotCut) {
  auto steps = noisy(60, 100.0);
  steps[0] = 400;
  steps[20] = 180;
  steps[41] = 170;
  const SteadyState found = find_steady_state(steps);
  ASSERT_TRUE(found.found);
  EXPECT_EQ(found.first, 1u);
  EXPECT_EQ(found.stalls, 2u);
}

TEST(SteadyState, ALongSlowHeadIsCutToItsEnd) {
  auto steps = noisy(80, 100.0);
  for (size_t i = 0; i < 20; ++i) steps[i] *= 1.04;
  const SteadyState found = find_steady_state(steps);
  ASSERT_TRUE(found.found) << found.reason;
  EXPECT_GE(found.first, 14u);
  EXPECT_LE(found.first, 20u);
}

TEST(SteadyState, ADriftIsRefused) {
  auto steps = noisy(100, 100.0);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] *= 1.0 + 0.002 * static_cast<double>(i);
  const SteadyState found = find_steady_state(steps);
  EXPECT_FALSE(found.found);
  EXPECT_NE(found.reason.find("no steady state"), std::string::npos) << found.reason;
}

TEST(SteadyState, TooFewOrBrokenStepsAreRefused) {
  EXPECT_FALSE(find_steady_state(std::vector<double>{1, 2, 3}).found);
  auto steps = noisy(20, 1.0);
  steps[4] = std::nan("");
  EXPECT_FALSE(find_steady_state(steps).found);
}

// 288 series of real training tests. Most of them settle; where they do, the first step (which loads, compiles and
// autotunes) is never inside the steady part when it is twice as slow as the median.
TEST(SteadyState, RealStepTimes) {
  const char* set = std::getenv("MBBENCH_TEST_DATA");
  const std::filesystem::path data = set != nullptr ? set : MBB_SOURCE_DIR "/../shared/data";
  std::ifstream file(data / "cpd/megatron_lm/step_times.tsv");
  if (!file) GTEST_SKIP() << "step_times.tsv is not in the data folder " << data << " (set MBBENCH_TEST_DATA)";
  std::string line;
  std::getline(file, line);
  size_t series = 0;
  size_t long_series = 0;
  size_t steady = 0;
  while (std::getline(file, line)) {
    ++series;
    std::istringstream values(line.substr(line.rfind('\t') + 1));
    std::vector<double> steps;
    for (double value = 0; values >> value;) steps.push_back(value);
    const SteadyState found = find_steady_state(steps);
    if (steps.size() < 20) continue;
    ++long_series;
    if (!found.found) {
      EXPECT_FALSE(found.reason.empty());
      continue;
    }
    ++steady;
    EXPECT_LT(found.first, steps.size() / 2);
    if (steps[0] > 2.0 * median(steps)) {
      EXPECT_GT(found.first, 0u) << line.substr(0, line.find('\t'));
    }
    const Estimate estimate = median_of_steps(std::span(steps).subspan(found.first));
    EXPECT_TRUE(estimate.has_interval());
    EXPECT_LE(estimate.low, estimate.value);
    EXPECT_GE(estimate.high, estimate.value);
  }
  EXPECT_EQ(series, 288u);
  EXPECT_GT(steady * 10, long_series * 8);
}

}  // namespace
}  // namespace mbb::analysis
