// The end of a launch by steps and by interval, and what must not end it.
#include "suites/runner/stopping_rule.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

// Steps until the rule has enough; 0 when it never has within `most`.
int64_t steps_until_enough(StoppingRule rule, double noise, int64_t most = 1000) {
  for (int64_t step = 0; step < most; ++step) {
    const double wobble = static_cast<double>(step * 7919 % 101 - 50) / 50.0;
    const double warm_up = step < 5 ? 3.0 : 1.0;
    if (rule.enough_after(step, warm_up * (1.0 + noise * wobble))) return step + 1;
  }
  return 0;
}

TEST(StoppingRule, AHundredSteadySteps) {
  const int64_t steps = steps_until_enough(StoppingRule(100, 0, 0, 0), 0.01);
  EXPECT_GE(steps, 105) << "warm-up does not count";
  EXPECT_LE(steps, 120);
}

TEST(StoppingRule, ANarrowIntervalEndsItSooner) {
  const int64_t quiet = steps_until_enough(StoppingRule(0, 0.5, 0, 0), 0.001);
  EXPECT_GE(quiet, static_cast<int64_t>(StoppingRule::kFewest));
  EXPECT_LE(quiet, 40);
  const int64_t noisy = steps_until_enough(StoppingRule(0, 0.5, 0, 0), 0.05);
  EXPECT_TRUE(noisy == 0 || noisy > 2 * quiet) << noisy;
  EXPECT_LE(steps_until_enough(StoppingRule(100, 0.5, 0, 0), 0.05), 120) << "whichever comes first";
}

TEST(StoppingRule, ProfiledStepsAreNotTimedAndHoldTheEndBack) {
  const int64_t steps = steps_until_enough(StoppingRule(50, 0, 200, 205), 0.001);
  EXPECT_GE(steps, 205);
  EXPECT_LE(steps, 220);
  EXPECT_EQ(steps_until_enough(StoppingRule(0, 0, 0, 0), 0.001), 0);
}

}  // namespace
}  // namespace mbb::suites
