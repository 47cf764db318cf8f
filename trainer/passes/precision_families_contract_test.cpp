// Every family under every recipe: it trains near bf16, or it says which matrix does not divide into blocks.
#include "trainer/models/small_families.h"
#include "trainer/passes/precision.h"
#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

std::vector<double> losses(const Config& config) {
  const auto recorded = record_training(config, 3);
  EXPECT_TRUE(recorded.has_value()) << (recorded ? "" : format(recorded.error()));
  std::vector<double> all;
  if (recorded)
    for (const RecordedStep& step : recorded->steps) all.push_back(step.loss);
  return all;
}

class FamilyRecipes : public testing::TestWithParam<Small> {};

TEST_P(FamilyRecipes, TrainUnderEveryRecipe) {
  Config c = config_of(GetParam());
  c.model.hidden_size = 64;
  c.model.ffn_hidden_size = 96;
  if (c.model.moe_ffn_hidden_size > 0) c.model.moe_ffn_hidden_size = 32;
  c.precision.recipe = Recipe::kBf16;
  const std::vector<double> bf16 = losses(c);
  for (const Recipe recipe : {Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kMxfp8, Recipe::kNvfp4}) {
    c.precision.recipe = recipe;
    const auto layout = resolve(c);
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    const bool tensorwise = recipe == Recipe::kFp8Delayed || recipe == Recipe::kFp8Current;
    if (!programs) {
      EXPECT_FALSE(tensorwise) << format(programs.error());
      EXPECT_NE(programs.error().what.find("does not divide into blocks of"), std::string::npos);
      continue;
    }
    int quantized = 0, left = 0;
    for (const Segment& segment : programs->programs[0].segments) {
      for (const Op& op : segment.ops) {
        quantized += op.kind->name == "gemm_scaled" || op.kind->name == "gemm_blocks" ||
                             op.kind->name.starts_with("grouped_gemm_quantized")
                         ? 1
                         : 0;
        left += (op.kind->name == "gemm" || op.kind->name.starts_with("grouped_gemm")) &&
                        !op.kind->name.starts_with("grouped_gemm_quantized") && op.role != Role::kNone &&
                        block_layer(op.path) >= 0
                    ? 1
                    : 0;
      }
    }
    EXPECT_GT(quantized, 0);
    EXPECT_EQ(left, 0);
    const std::vector<double> mine = losses(c);
    ASSERT_EQ(mine.size(), bf16.size());
    for (size_t i = 0; i < bf16.size(); ++i)
      EXPECT_NEAR(mine[i], bf16[i], 0.03 * bf16[i]) << "recipe " << static_cast<int>(recipe) << " step " << i;
    EXPECT_NE(mine, bf16);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyRecipes, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
