// The rules of resolve(): each violation names its knob.
#include "trainer/run/layout.h"

#include <gtest/gtest.h>

namespace mbb::trainer {
namespace {

struct BadCase {
  const char* name;
  void (*change)(Config&);
  const char* says;
};

void PrintTo(const BadCase& bad, std::ostream* out) {
  *out << bad.name;
}

class Refused : public testing::TestWithParam<BadCase> {};

TEST_P(Refused, NamesKnobAndRule) {
  Config config;
  GetParam().change(config);
  const auto layout = resolve(config);
  ASSERT_FALSE(layout.has_value());
  EXPECT_NE(layout.error().what.find(GetParam().says), std::string::npos) << layout.error().what;
}

INSTANTIATE_TEST_SUITE_P(
    All, Refused,
    testing::Values(
        BadCase{"tp_heads", [](Config& c) { c.parallel.tensor_model_parallel_size = 3; }, "model.num_attention_heads"},
        BadCase{"tp_groups", [](Config& c) { c.parallel.tensor_model_parallel_size = 4; }, "model.num_query_groups"},
        BadCase{"pp_layers", [](Config& c) { c.parallel.pipeline_model_parallel_size = 3; }, "model.num_layers"},
        BadCase{"gpus",
                [](Config& c) {
                  c.parallel.tensor_model_parallel_size = 2;
                  c.parallel.gpus = 3;
                },
                "parallel.gpus"},
        BadCase{"batch", [](Config& c) { c.train.micro_batch_size = 3; }, "train.global_batch_size"},
        BadCase{"sequence",
                [](Config& c) {
                  c.parallel.tensor_model_parallel_size = 2;
                  c.train.seq_length = 63;
                },
                "train.seq_length"},
        BadCase{"sp_alone", [](Config& c) { c.parallel.sequence_parallel = true; }, "parallel.sequence_parallel"},
        BadCase{"no_model", [](Config& c) { c.model.name = "llama9"; }, "llama9"},
        BadCase{"odd_head", [](Config& c) { c.model.kv_channels = 15; }, "model.kv_channels"},
        BadCase{"min_lr", [](Config& c) { c.optimizer.lr = 1e-4; }, "optimizer.min_lr = 0.0003 is above optimizer.lr"},
        BadCase{"zero", [](Config& c) { c.train.train_iters = 0; }, "train.train_iters"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Layout, ADomainThatAGroupStraddlesIsRefusedWithThePadding) {
  Config config;
  config.model.name = "llama3.1-405b";
  config.parallel.tensor_model_parallel_size = 8;
  config.parallel.gpus = 144;
  config.train.global_batch_size = 18;
  config.parallel.nvlink_domain_size = 72;
  EXPECT_TRUE(resolve(config).has_value());
  config.parallel.nvlink_domain_size = 12;
  const auto refused = resolve(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(
      refused.error().what,
      "parallel.nvlink_domain_size = 12: tp group of ranks 8..15 (8 members) straddles NVLink domains of 12 ranks");
  EXPECT_EQ(refused.error().hint, "use 8 of the 12 GPUs of a domain and leave 4 idle: such a group spans 8 ranks");
  config.parallel.nvlink_domain_size = 4;
  const auto too_small = resolve(config);
  ASSERT_FALSE(too_small.has_value());
  EXPECT_EQ(too_small.error().hint, "such a group spans 8 ranks, more than a domain has: make it smaller");
}

TEST(Layout, ALeastRateThatNoStepReachesIsNotHeldAgainstTheRate) {
  Config config;
  config.optimizer.lr = 1e-4;
  config.optimizer.lr_decay_style = LrDecay::kConstant;
  EXPECT_TRUE(resolve(config).has_value());
  config.optimizer.lr_decay_style = LrDecay::kCosine;
  config.optimizer.lr_warmup_iters = config.train.train_iters;
  EXPECT_TRUE(resolve(config).has_value());
  config.optimizer.lr_warmup_iters = config.train.train_iters - 1;
  EXPECT_FALSE(resolve(config).has_value());
}

TEST(Layout, CountsMicroBatchesAndRanks) {
  Config config;
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.gpus = 8;
  config.train.global_batch_size = 16;
  config.train.micro_batch_size = 2;
  const auto layout = resolve(config);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->dp, 2);
  EXPECT_EQ(layout->micro_batches, 4);
  EXPECT_TRUE(layout->sequence_parallel);
  ASSERT_EQ(layout->stages.size(), 2U);
  ASSERT_EQ(layout->stages[0].size(), 1U);
  EXPECT_TRUE(layout->stages[0][0].embedding);
  EXPECT_FALSE(layout->stages[0][0].head);
  EXPECT_EQ(layout->stages[1][0].first_layer, 1);
}

}  // namespace
}  // namespace mbb::trainer
