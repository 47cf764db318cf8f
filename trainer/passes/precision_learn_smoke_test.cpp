// Every recipe learns the shipped text as bf16 does: after 200 steps its loss is within 1 % of bf16's.
//
// Judged by the mean over the last twenty steps (each on text that was not seen before), with a learning rate that ends
// near zero: of three seeds, nvfp4 then ended 0.0 to 0.7 % above bf16, fp8_delayed 0.3 % below to 0.1 % above it. At
// three times the rate, ending at a tenth of it, two roundings of bf16 itself end up to 0.9 % apart and a recipe up
// to 2.3 % above or 0.5 % below it, by the seed: weights then still wander, and the loss of one such run says nothing
// about a recipe.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "trainer/run/precision_rules.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kSteps = 200;
constexpr size_t kAveraged = 20;  // last steps

// The quickstart's model with widths that every recipe can block.
Config config_of(Recipe recipe) {
  Config c;
  c.model.hidden_size = 128;
  c.model.ffn_hidden_size = 256;
  c.model.kv_channels = 32;
  c.model.num_query_groups = 4;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 2;
  c.train.train_iters = kSteps;
  c.train.seed = 1;
  c.optimizer.lr = 1e-3;
  c.optimizer.min_lr = 1e-5;
  c.precision.recipe = recipe;
  return c;
}

// Quantization whose scales are 64 times too large, as if amax were of a part of the values: what is above is cut off.
Status quantize_with_large_scale(const CpuCall& call) {
  MB_TRY(kQuantize.cpu(call));
  float scale = 64.0F / *static_cast<const float*>(call.out[2].data);
  Tensor given;
  given.path = "a scale too large";
  given.shape = Shape{1};
  const std::array in{call.in[0], CpuOperand{&scale, &given}};
  return kQuantizeDelayed.cpu({call.op, in, call.out, call.rank});
}

void break_scaling(StepPrograms& built) {
  static const OpKind broken = [] {
    OpKind kind = kQuantize;
    kind.cpu = quantize_with_large_scale;
    return kind;
  }();
  int planted = 0;
  for (Program& program : built.programs)
    for (Segment& segment : program.segments)
      for (Op& op : segment.ops)
        if (op.kind == &kQuantize) op.kind = &broken, ++planted;
  ASSERT_GT(planted, 0);
}

double last_loss(Recipe recipe, void (*change)(StepPrograms&) = nullptr) {
  const auto layout = resolve(config_of(recipe));
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  if (change != nullptr) change(*programs);
  const auto data = open_dataset(*layout);
  EXPECT_TRUE(data.has_value()) << (data ? "" : format(data.error()));
  const auto result =
      train(*layout, *programs, [&](int64_t index, std::span<int32_t> tokens) { return data->sample(index, tokens); });
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  double sum = 0;
  if (result)
    for (size_t i = 0; i < kAveraged; ++i) sum += result->steps[result->steps.size() - 1 - i].loss;
  return sum / static_cast<double>(kAveraged);
}

class RecipeLearning : public testing::TestWithParam<Recipe> {};

TEST_P(RecipeLearning, EndsNearBf16) {
  const double bf16 = last_loss(Recipe::kBf16);
  const double mine = last_loss(GetParam());
  std::printf("[          ] loss %.4f, bf16 %.4f, %+.2f %%\n", mine, bf16, 100 * (mine / bf16 - 1));
  EXPECT_LT(bf16, 2.6) << "bf16 has not learned";
  EXPECT_NEAR(mine, bf16, 0.01 * bf16);
  EXPECT_NE(mine, bf16);
}

// The limit is a test: a recipe whose scales are wrong learns too, ends 2.6 % above bf16 and misses it.
TEST(BrokenRecipe, EndsOutsideTheLimit) {
  const double bf16 = last_loss(Recipe::kBf16);
  const double broken = last_loss(Recipe::kFp8Current, break_scaling);
  std::printf("[          ] loss %.4f, bf16 %.4f, %+.2f %%\n", broken, bf16, 100 * (broken / bf16 - 1));
  EXPECT_GT(broken, 1.01 * bf16);
}

std::string label(const testing::TestParamInfo<Recipe>& test) {
  return recipe_name(config_of(test.param));
}

INSTANTIATE_TEST_SUITE_P(All, RecipeLearning,
                         testing::Values(Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise,
                                         Recipe::kMxfp8, Recipe::kNvfp4),
                         label);

}  // namespace
}  // namespace mbb::trainer
