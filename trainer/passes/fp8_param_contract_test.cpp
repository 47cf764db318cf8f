// Parameters kept in FP8: the same losses to the bit, a byte a weight, and gathers of half the bytes.
#include <gtest/gtest.h>

#include "trainer/program/explain.h"
#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

struct Form {
  const char* name;
  Recipe recipe;
  int tp, pp, dp;
  void (*set)(Config&) = nullptr;
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

Config config_of(const Form& form, bool fp8_param) {
  Config c;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.precision.recipe = form.recipe;
  c.precision.fp8_param = fp8_param;
  c.parallel.tensor_model_parallel_size = form.tp;
  c.parallel.pipeline_model_parallel_size = form.pp;
  c.parallel.gpus = form.tp * form.pp * form.dp;
  if (form.set != nullptr) form.set(c);
  return c;
}

void fully_sharded(Config& c) {
  c.data_parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
}

class Fp8Param : public testing::TestWithParam<Form> {};

TEST_P(Fp8Param, ChangesNoBitOfTheLosses) {
  const auto kept = record_training(config_of(GetParam(), true), 5);
  const auto quantized = record_training(config_of(GetParam(), false), 5);
  ASSERT_TRUE(kept.has_value()) << format(kept.error());
  ASSERT_TRUE(quantized.has_value()) << format(quantized.error());
  for (size_t i = 0; i < kept->steps.size(); ++i) EXPECT_EQ(kept->steps[i].loss, quantized->steps[i].loss) << i;
  EXPECT_LT(kept->steps.back().loss, kept->steps.front().loss);
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Param,
                         testing::Values(Form{"current", Recipe::kFp8Current, 1, 1, 1},
                                         Form{"delayed", Recipe::kFp8Delayed, 1, 1, 1},
                                         Form{"current_dp2", Recipe::kFp8Current, 1, 1, 2},
                                         Form{"delayed_dp2", Recipe::kFp8Delayed, 1, 1, 2},
                                         Form{"current_replicated", Recipe::kFp8Current, 1, 1, 2,
                                              [](Config& c) { c.parallel.use_distributed_optimizer = false; }},
                                         Form{"delayed_tp2_pp2_dp2", Recipe::kFp8Delayed, 2, 2, 2},
                                         Form{"overlapped", Recipe::kFp8Current, 1, 1, 2,
                                              [](Config& c) {
                                                c.data_parallel.overlap_grad_reduce =
                                                    c.data_parallel.overlap_param_gather = true;
                                              }},
                                         Form{"optimizer_under_forward", Recipe::kFp8Delayed, 1, 1, 2,
                                              [](Config& c) { c.data_parallel.overlap_optimizer_with_forward = true; }},
                                         Form{"fsdp", Recipe::kFp8Current, 1, 1, 2, fully_sharded},
                                         Form{"fsdp_delayed", Recipe::kFp8Delayed, 1, 1, 2, fully_sharded},
                                         Form{"small_states", Recipe::kFp8Current, 1, 1, 1,
                                              [](Config& c) {
                                                c.optimizer.use_precision_aware_optimizer = true;
                                                c.optimizer.exp_avg_dtype = StateType::kFp16;
                                              }}),
                         [](const auto& test) { return std::string(test.param.name); });

void lora(Config& c) {
  c.memory.lora_rank = 4;
  c.memory.lora_targets = "qkv,fc1";
  c.optimizer.lr = 1e-2;
}
void frozen_layer(Config& c) {
  c.memory.frozen = "layers.0.*";
}

// Frozen weights: losses as without, to the bit where the scale is the same (delayed scaling begins with another one),
// and a byte each.
TEST(Fp8ParamFrozen, WeightsAreKeptInFp8) {
  struct Frozen {
    Recipe recipe;
    int tp, dp;
    void (*freeze)(Config&);
  };
  for (const auto& [recipe, tp, dp, freeze] : {Frozen{Recipe::kFp8Current, 1, 1, lora},
                                               {Recipe::kFp8Current, 2, 1, lora},
                                               {Recipe::kFp8Current, 1, 2, frozen_layer},
                                               {Recipe::kFp8Delayed, 1, 1, lora},
                                               {Recipe::kFp8Delayed, 2, 1, frozen_layer}}) {
    const Form form{"frozen", recipe, tp, 1, dp, freeze};
    SCOPED_TRACE(testing::Message() << static_cast<int>(recipe) << " tp " << tp << " dp " << dp);
    const auto kept = record_training(config_of(form, true), 2), usual = record_training(config_of(form, false), 2);
    ASSERT_TRUE(kept.has_value()) << format(kept.error());
    ASSERT_TRUE(usual.has_value()) << format(usual.error());
    for (size_t i = 0; i < kept->steps.size(); ++i)
      EXPECT_NEAR(kept->steps[i].loss, usual->steps[i].loss,
                  recipe == Recipe::kFp8Current ? 0 : 0.02 * usual->steps[i].loss)
          << i;
    const auto layout = resolve(config_of(form, true));
    ASSERT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value());
    int in_fp8 = 0;
    for (const Tensor& t : programs->programs[0].tensors) {
      const bool frozen = t.category == Category::kWeight && t.init.kind != Init::Kind::kNone &&
                          t.main_grad == kNoTensor && t.path.starts_with("layers.") && t.shape.rank() == 2;
      if (!frozen) continue;
      EXPECT_EQ(t.dtype, DType::kE4M3) << t.path;
      EXPECT_NE(t.scales, kNoTensor) << t.path;
      ++in_fp8;
    }
    EXPECT_GE(in_fp8, 4);
    for (const Segment& segment : programs->programs[0].segments)
      for (const Op& op : segment.ops)
        if (op.kind->name == "quantize" || op.kind->name == "quantize_delayed") {
          EXPECT_NE(programs->programs[0].tensor(op.in[0]).category, Category::kWeight) << op.path;
        }
  }
}

TEST(Fp8ParamCosts, AWeightTakesAByteAndItsGatherHalf) {
  const Form form{"", Recipe::kFp8Current, 1, 1, 2};
  struct Costs {
    int64_t weights = 0, quantized = 0, gathered = 0;
  };
  const auto costs = [&](bool fp8_param) {
    const auto layout = resolve(config_of(form, fp8_param));
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    Costs all;
    const Program& program = programs->programs[0];
    for (const Tensor& t : program.tensors) {
      const bool block = t.main_grad != kNoTensor && t.path.starts_with("layers.") && t.shape.rank() == 2;
      if (block) all.quantized += t.shape.elements();
      if (t.category == Category::kWeight && t.scope == Scope::kPersistent && t.view_of == kNoTensor &&
          t.path.ends_with(".weights"))
        all.weights += t.bytes();
    }
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops)
        if (op.kind->name == "all_gather") all.gathered += program.tensor(op.out[0]).bytes();
    return all;
  };
  const Costs kept = costs(true), usual = costs(false);
  ASSERT_GT(kept.quantized, 0);
  EXPECT_EQ(usual.quantized, kept.quantized);
  // Two buckets are padded where one was: by less than a shard's alignment.
  EXPECT_NEAR(static_cast<double>(usual.weights - kept.weights), static_cast<double>(kept.quantized), 1024);
  EXPECT_NEAR(static_cast<double>(usual.gathered - kept.gathered), static_cast<double>(kept.quantized), 1024);
}

// Whose buckets are others than without FP8 weights: losses near, and not the same bits.
TEST(Fp8ParamMoments, OfFewerBitsAreDrawnOrScaledOtherwise) {
  struct Other {
    StateType moments;
    int dp;
  };
  for (const auto& [moments, dp] : {Other{StateType::kBf16, 1}, Other{StateType::kFp16, 4}}) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(moments));
    const auto losses = [&](bool fp8_param) {
      Config c = config_of({"", Recipe::kFp8Current, 1, 1, dp}, fp8_param);
      c.optimizer.use_precision_aware_optimizer = true;
      c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = moments;
      const auto recorded = record_training(c, 5);
      EXPECT_TRUE(recorded.has_value()) << (recorded ? "" : format(recorded.error()));
      std::vector<double> all;
      if (recorded)
        for (const RecordedStep& step : recorded->steps) all.push_back(step.loss);
      return all;
    };
    const auto kept = losses(true), usual = losses(false);
    EXPECT_NE(kept, usual);
    ASSERT_EQ(kept.size(), usual.size());
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_NEAR(kept[i], usual[i], 1e-2 * usual[i]) << i;
  }
}

// Fully sharded, a weight is quantized where it is gathered, and nothing of it lives through the step.
TEST(Fp8FullySharded, KeepsNoWholeWeight) {
  for (const bool fp8_param : {false, true}) {
    const auto layout = resolve(config_of({"", Recipe::kFp8Current, 1, 1, 2, fully_sharded}, fp8_param));
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value()) << format(programs.error());
    const Program& program = programs->programs[0];
    int made = 0;
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        const bool of_weight = !op.in.empty() && program.tensor(op.in[0]).main_grad != kNoTensor;
        if (!of_weight || (op.kind->name != "quantize" && op.kind->name != "transpose_quantized")) continue;
        EXPECT_EQ(op.when, When::kAlways) << op.path;
        for (const TensorId id : op.out) EXPECT_NE(program.tensor(id).scope, Scope::kStep) << op.path;
        ++made;
      }
    }
    // Forward and backward each, or the backward's transposes alone.
    EXPECT_EQ(made, fp8_param ? 8 : 16);
  }
}

TEST(Fp8ParamRefuses, OtherRecipes) {
  const auto layout = resolve(config_of({"", Recipe::kMxfp8, 1, 1, 1}, true));
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(format(layout.error()),
            "error: precision.fp8_param = true has no effect with precision.recipe = mxfp8\n"
            "  hint: it belongs to fp8_delayed and fp8_current; leave it at false otherwise");
}

TEST(Fp8ParamRefuses, MastersOfFewerBits) {
  for (const auto& [masters, name] : {std::pair{StateType::kBf16, "bf16"}, {StateType::kFp16, "fp16"}}) {
    Config c = config_of({"", Recipe::kFp8Current, 1, 1, 1}, true);
    c.optimizer.use_precision_aware_optimizer = true;
    c.optimizer.main_params_dtype = masters;
    const auto layout = resolve(c);
    ASSERT_FALSE(layout.has_value());
    EXPECT_EQ(format(layout.error()),
              std::string("error: optimizer.main_params_dtype = ") + name +
                  " needs bf16 weights, and precision.fp8_param = true keeps them in FP8\n"
                  "  hint: leave optimizer.main_params_dtype at fp32, or set precision.fp8_param = false");
    Config other = c;
    other.optimizer.main_params_dtype = StateType::kFp32;
    EXPECT_TRUE(resolve(other).has_value());
    c.precision.fp8_param = false;
    EXPECT_TRUE(resolve(c).has_value());
  }
}

}  // namespace
}  // namespace mbb::trainer
