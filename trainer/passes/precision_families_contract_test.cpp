// Every family under every recipe: it trains near bf16, or it says which matrix does not divide into blocks.
#include "trainer/models/small_families.h"
#include "trainer/models/transformer.h"
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
  for (const Recipe recipe :
       {Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise, Recipe::kMxfp8, Recipe::kNvfp4}) {
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

Config partial_deepseek() {
  Config c = config_of({"deepseek_sixteens", deepseek_sixteens});
  c.train.seq_length = 24;
  return c;
}

TEST(PartialBlocks, DeepSeekTrainsNearBf16) {
  Config c = partial_deepseek();
  c.precision.recipe = Recipe::kBf16;
  const std::vector<double> bf16 = losses(c);
  for (const bool power_of_two : {true, false}) {
    c.precision.recipe = Recipe::kFp8Blockwise;
    c.precision.fp8_power_of_two_scales = power_of_two;
    const std::vector<double> mine = losses(c);
    ASSERT_EQ(mine.size(), bf16.size());
    EXPECT_NE(mine, bf16);
    for (size_t i = 0; i < bf16.size(); ++i) EXPECT_NEAR(mine[i], bf16[i], 0.01 * bf16[i]) << "step " << i;
  }
}

// An expert's weight has the blocks it would have alone, however many experts a rank holds.
TEST(PartialBlocks, ExpertsHaveBlocksOfTheirOwn) {
  Config c = partial_deepseek();
  c.precision.recipe = Recipe::kFp8Blockwise;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto built = build_programs(*layout);
  ASSERT_TRUE(built.has_value()) << format(built.error());
  const Program& program = built->programs[0];
  int stacks = 0;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) {
      const auto* blocks = std::get_if<QuantizeBlocksAttrs>(&op.attrs);
      if (blocks == nullptr || blocks->stack == 1) continue;
      ++stacks;
      const Shape& weight = program.tensor(op.in[0]).shape;
      ASSERT_EQ(weight.rank(), 3);
      const auto parts = [](int64_t side) { return (side + 127) / 128; };
      EXPECT_EQ(program.tensor(op.out[1]).shape, (Shape{4 * parts(weight[1]), parts(weight[2])})) << op.path;
      EXPECT_EQ(program.tensor(op.out[3]).shape, (Shape{parts(weight[2]), 4 * parts(weight[1])})) << op.path;
    }
  EXPECT_EQ(stacks, 2);  // one layer of experts: up with gate, and down
  // The same losses from one rank of four experts and from two ranks of two.
  const std::vector<double> one = losses(c);
  c.parallel.expert_model_parallel_size = 2;
  c.parallel.gpus = 2;
  const std::vector<double> two = losses(c);
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-3 * one[i]) << "step " << i;
}

// DeepSeek-V3's 64 rows of rotated keys, GPT-OSS's 2880, Qwen2.5's 4864 and 1536 over heads: all in sixteens.
TEST(PartialBlocks, EveryListedModelPlansAtItsSize) {
  for (const ModelShape& model : all_models()) {
    Config c;
    c.model.name = model.name;
    c.train.micro_batch_size = 1;
    c.train.global_batch_size = 1;
    c.train.seq_length = 128;
    c.precision.recipe = Recipe::kFp8Blockwise;
    const auto layout = resolve(c);
    ASSERT_TRUE(layout.has_value()) << model.name << ": " << format(layout.error());
    const Program program = build_program(*layout, layout->mesh.rank_class(0));
    const Status fits = check_block_shapes(program);
    EXPECT_TRUE(fits.has_value()) << model.name << ": " << format(fits.error());
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyRecipes, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
