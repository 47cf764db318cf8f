// Training with AdamW's states in fewer bits: near the fp32 states, whatever the sharding, in the bytes it should take.
#include <gtest/gtest.h>

#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

Config small(Recipe recipe) {
  Config c;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.precision.recipe = recipe;
  return c;
}

Config aware(StateType params, StateType exp_avg, StateType exp_avg_sq) {
  Config c = small(Recipe::kBf16);
  c.optimizer.use_precision_aware_optimizer = true;
  c.optimizer.main_params_dtype = params;
  c.optimizer.exp_avg_dtype = exp_avg;
  c.optimizer.exp_avg_sq_dtype = exp_avg_sq;
  return c;
}

std::vector<double> losses(const Config& config, int64_t steps = 12) {
  const auto recorded = record_training(config, steps);
  EXPECT_TRUE(recorded.has_value()) << (recorded ? "" : format(recorded.error()));
  std::vector<double> all;
  if (recorded)
    for (const RecordedStep& step : recorded->steps) all.push_back(step.loss);
  return all;
}

TEST(PrecisionAwareOptimizer, TrainsAsTheFp32StatesDo) {
  const auto usual = losses(small(Recipe::kBf16));
  using enum StateType;
  struct Case {
    StateType params, exp_avg, exp_avg_sq;
    double bound;
  };
  // The remainder differs from an fp32 master in the rounding of weights at exact halves alone.
  for (const Case& c :
       {Case{kFp32, kFp32, kFp32, 1e-4}, Case{kFp32, kBf16, kBf16, 1e-2}, Case{kFp32, kFp16, kFp16, 1e-2},
        Case{kFp32, kFp8, kFp8, 4e-2}, Case{kFp16, kFp32, kFp32, 1e-3}, Case{kFp16, kFp8, kBf16, 4e-2},
        Case{kBf16, kFp32, kFp32, 1e-2}, Case{kBf16, kBf16, kBf16, 1e-2}}) {
    const auto mine = losses(aware(c.params, c.exp_avg, c.exp_avg_sq));
    ASSERT_EQ(mine.size(), usual.size());
    for (size_t i = 0; i < usual.size(); ++i)
      EXPECT_NEAR(mine[i], usual[i], c.bound * usual[i])
          << "step " << i << ", forms " << static_cast<int>(c.params) << static_cast<int>(c.exp_avg);
    EXPECT_LT(mine.back(), mine.front() - 0.1);
  }
}

// A scale is of a tensor's part of the shard, so that a shard's masters round otherwise than the whole's.
TEST(PrecisionAwareOptimizer, ShardsOfAnFp16MasterTrainAsTheWholeDoes) {
  using enum StateType;
  const Config one = aware(kFp16, kFp32, kFp32);
  const auto alone = losses(one, 6);
  for (const bool parameters : {false, true}) {
    Config two = one;
    two.parallel.gpus = 2;
    two.data_parallel.use_torch_fsdp2 = parameters;
    const auto sharded = losses(two, 6);
    ASSERT_EQ(sharded.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(sharded[i], alone[i], 1e-3 * alone[i]);
  }
}

TEST(PrecisionAwareOptimizer, ShardsDrawTheSameNumbers) {
  const Config one = aware(StateType::kBf16, StateType::kBf16, StateType::kBf16);
  Config two = one;
  two.parallel.gpus = 2;
  const auto alone = losses(one, 6), sharded = losses(two, 6);
  // Gradients sum in another order, so that a draw near its threshold may fall the other way.
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(sharded[i], alone[i], 1e-3 * alone[i]);
}

// NUMERICS.md 4, in bytes a parameter of the shard.
TEST(PrecisionAwareOptimizer, TakesTheBytesOfItsForms) {
  const auto bytes = [](const Config& config) {
    const auto layout = resolve(config);
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    double states = 0, shard = 0;
    for (const Tensor& t : programs->programs[0].tensors) {
      if (t.view_of != kNoTensor || t.path.ends_with(".moment_scales")) continue;
      if (t.category == Category::kMaster || t.category == Category::kMoment) states += static_cast<double>(t.bytes());
      if (t.path.ends_with(".exp_avg")) shard += static_cast<double>(t.shape.elements());
    }
    return states / shard;
  };
  using enum StateType;
  EXPECT_EQ(bytes(small(Recipe::kFp32)), 8);
  EXPECT_EQ(bytes(small(Recipe::kBf16)), 12);
  EXPECT_EQ(bytes(aware(kFp32, kFp32, kFp32)), 10);
  EXPECT_EQ(bytes(aware(kFp32, kBf16, kBf16)), 6);
  EXPECT_EQ(bytes(aware(kFp32, kFp16, kFp8)), 5);
  EXPECT_EQ(bytes(aware(kFp32, kFp8, kFp8)), 4);
  EXPECT_EQ(bytes(aware(kFp16, kFp32, kFp32)), 10);
  EXPECT_EQ(bytes(aware(kFp16, kBf16, kFp8)), 5);
  EXPECT_EQ(bytes(aware(kBf16, kBf16, kBf16)), 4);
}

TEST(PrecisionAwareOptimizer, RefusesWhatHasNoEffect) {
  const auto refusal = [](const Config& config) {
    const auto layout = resolve(config);
    return layout ? std::string() : format(layout.error());
  };
  Config c = aware(StateType::kFp32, StateType::kBf16, StateType::kFp32);
  EXPECT_EQ(refusal(c), "");
  c.optimizer.use_precision_aware_optimizer = false;
  EXPECT_EQ(refusal(c),
            "error: optimizer.exp_avg_dtype = bf16 has no effect with optimizer.use_precision_aware_optimizer = false\n"
            "  hint: it belongs to the precision-aware optimizer; leave it at fp32 otherwise");
  c = small(Recipe::kFp32);
  c.optimizer.use_precision_aware_optimizer = true;
  EXPECT_EQ(refusal(c),
            "error: optimizer.use_precision_aware_optimizer = true needs bf16 weights, and precision.recipe = fp32\n"
            "  hint: set precision.recipe = bf16 or a recipe of fewer bits");
}

}  // namespace
}  // namespace mbb::trainer
