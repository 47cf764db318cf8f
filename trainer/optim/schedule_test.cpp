// The learning rate at the corners and between them.
#include "trainer/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::trainer {
namespace {

LearningRateSchedule schedule(LrDecay style) {
  return {.lr = 1.0, .min_lr = 0.1, .init_lr = 0.0, .warmup_steps = 10, .decay_steps = 110, .style = style};
}

TEST(LearningRate, WarmUpIsLinearFromItsStart) {
  for (const LrDecay style : {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    LearningRateSchedule s = schedule(style);
    EXPECT_EQ(learning_rate(s, 0), 0.0);
    EXPECT_DOUBLE_EQ(learning_rate(s, 5), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(s, 10), 1.0);
    s.init_lr = 0.2;
    EXPECT_DOUBLE_EQ(learning_rate(s, 5), 0.6);
  }
}

TEST(LearningRate, DecayReachesMinimumAndStaysThere) {
  const LearningRateSchedule linear = schedule(LrDecay::kLinear), cosine = schedule(LrDecay::kCosine);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 60), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 60), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 35), 0.1 + 0.9 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 35), 0.1 + 0.9 * (1 + std::cos(M_PI / 4)) / 2);
  for (const std::int64_t step : {110, 111, 5000}) {
    EXPECT_DOUBLE_EQ(learning_rate(linear, step), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(cosine, step), 0.1);
  }
  for (std::int64_t step = 10; step < 110; ++step)
    EXPECT_GT(learning_rate(cosine, step), learning_rate(cosine, step + 1));
}

TEST(LearningRate, ConstantStays) {
  EXPECT_EQ(learning_rate(schedule(LrDecay::kConstant), 100000), 1.0);
}

TEST(LearningRate, OfARunDecaysOverAllItsSteps) {
  const OptimizerConfig config = {.lr = 1.0, .min_lr = 0.1, .lr_warmup_iters = 10, .lr_decay_style = LrDecay::kCosine};
  LearningRateSchedule same = schedule(LrDecay::kCosine);
  for (std::int64_t step = 0; step < 110; ++step)
    EXPECT_EQ(learning_rate(config, 110, step), learning_rate(same, step)) << step;
  EXPECT_DOUBLE_EQ(learning_rate(config, 10, 9), 0.9);
  EXPECT_DOUBLE_EQ(learning_rate(config, 5, 4), 0.4);
}

TEST(LearningRate, WithoutWarmUpTheFirstStepIsFull) {
  LearningRateSchedule s = schedule(LrDecay::kCosine);
  s.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(s, 0), 1.0);
}

TEST(LearningRate, BadSchedulesAreRefusedByKnob) {
  auto says = [](const LearningRateSchedule& s) {
    const Status status = validate(s);
    return status.has_value() ? std::string() : status.error().what;
  };
  LearningRateSchedule s = schedule(LrDecay::kCosine);
  EXPECT_EQ(says(s), "");
  s.lr = NAN;
  EXPECT_NE(says(s).find("lr is nan"), std::string::npos);
  s = schedule(LrDecay::kCosine);
  s.min_lr = 2;
  EXPECT_NE(says(s).find("min_lr is 2"), std::string::npos);
  s = schedule(LrDecay::kCosine);
  s.init_lr = -1;
  EXPECT_NE(says(s).find("lr_warmup_init is -1"), std::string::npos);
  s = schedule(LrDecay::kCosine);
  s.warmup_steps = -1;
  EXPECT_NE(says(s).find("lr_warmup_iters is -1"), std::string::npos);
  s = schedule(LrDecay::kCosine);
  s.decay_steps = 10;
  EXPECT_NE(says(s).find("lr_decay_iters is 10, not above lr_warmup_iters (10)"), std::string::npos);
  s.style = LrDecay::kConstant;
  EXPECT_EQ(says(s), "");
}

}  // namespace
}  // namespace mbb::trainer
