// Quantized experts whose rows come from other ranks: each expert's rows are put together before they are quantized.
#include <gtest/gtest.h>

#include "trainer/models/small_families.h"
#include "trainer/precision/run_op_test.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/precision_rules.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// Two experts' pieces from two sources, with room that nobody fills behind each source's.
TEST(MergePieces, RowsOfAnExpertFollowOneAnother) {
  RunOp ops;
  const TensorId segments = ops.input<int32_t>(DType::kI32, Shape{2, 4}, {0, 2, 5, 5, /**/ 2, 1, 0, 3});
  const DispatchAttrs attrs{.experts = 2, .rows = 10};
  const auto merged = ops.run(kMergePieces, {segments}, attrs);
  EXPECT_EQ(ops.values<int32_t>(merged[0]), (std::vector<int32_t>{0, 1, 2, -1, -1, 3, 4, 5, -1, -1}));
  EXPECT_EQ(ops.values<int32_t>(merged[1]), (std::vector<int32_t>{0, 2, /**/ 2, 4}));
  const TensorId arrived = ops.f32(Shape{10, 1}, {10, 11, 20, 0, 0, 21, 22, 23, 0, 0});
  const TensorId sorted = ops.run(kPermute, {arrived, merged[0]}, attrs)[0];
  EXPECT_EQ(ops.values<float>(sorted), (std::vector<float>{10, 11, 20, 21, 22, 23, 0, 0, 0, 0}));
  const TensorId back = ops.run(kUnpermute, {sorted, merged[0]}, attrs)[0];
  EXPECT_EQ(ops.values<float>(back), ops.values<float>(arrived));
}

// Of sizes that every recipe's blocks divide, also over two expert tensor parallel ranks.
Config base(const char* name, Recipe recipe) {
  Config c = config_of(family_of(name));
  in_sixteens(c);
  c.model.num_experts = 8;
  c.model.kv_channels = 16;
  c.model.moe_ffn_hidden_size = 64;
  if (c.parallel.moe_expert_capacity_factor > 0) c.parallel.moe_expert_capacity_factor = 0.5;
  c.train.global_batch_size = 8;
  c.precision.recipe = recipe;
  return c;
}

struct Mapping {
  const char* name;
  int tp, dp, ep, etp;
  MoeExchange exchange = MoeExchange::kPadded;
  bool exchanged() const { return ep * etp > 1; }
};
constexpr Mapping kMappings[] = {
    {"ep2", 1, 2, 2, 1},      {"ep2_counts", 1, 2, 2, 1, MoeExchange::kCounts},      {"ep4", 1, 4, 4, 1},
    {"etp2", 1, 2, 1, 2},     {"ep2_etp2_counts", 1, 4, 2, 2, MoeExchange::kCounts}, {"tp2_ep2_etp2", 2, 2, 2, 2},
    {"tp2_etp1", 2, 1, 1, 1},
};

Config mapped(Config c, const Mapping& m) {
  c.parallel.tensor_model_parallel_size = m.tp;
  c.parallel.expert_model_parallel_size = m.ep;
  c.parallel.expert_tensor_parallel_size = m.etp;
  c.parallel.gpus = m.tp * m.dp;
  c.parallel.moe_exchange = m.exchange;
  c.parallel.use_distributed_optimizer = false;
  return c;
}

std::vector<double> losses(const Config& config) {
  const auto trained = train_and_collect(config);
  EXPECT_TRUE(trained.has_value()) << (trained ? "" : format(trained.error()));
  std::vector<double> all;
  if (trained)
    for (const StepReport& step : trained->steps) all.push_back(step.loss);
  return all;
}

class QuantizedExperts : public testing::TestWithParam<Recipe> {};

// NUMERICS.md 3 by mapping: within twice what the recipe itself costs, or a rounding of the loss.
TEST_P(QuantizedExperts, OfOtherRanksStayWithinTwiceTheRecipesError) {
  for (const char* name : {"mixtral", "mixtral_capacity", "gpt_oss"}) {
    const std::vector<double> exact = losses(base(name, Recipe::kFp32)), one = losses(base(name, GetParam()));
    ASSERT_EQ(one.size(), exact.size());
    double cost = 0;
    for (size_t i = 0; i < one.size(); ++i) cost = std::max(cost, std::abs(one[i] - exact[i]));
    EXPECT_GT(cost, 0);
    for (const Mapping& m : kMappings) {
      const Config c = mapped(base(name, GetParam()), m);
      if (m.exchange == MoeExchange::kCounts && c.parallel.moe_expert_capacity_factor > 0) continue;
      SCOPED_TRACE(std::string(name) + " " + m.name);
      const std::vector<double> many = losses(c);
      ASSERT_EQ(many.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_LE(std::abs(many[i] - one[i]), std::max(2 * cost, 2e-3 * exact[i])) << "step " << i;
    }
  }
}

// Rows are put together once a layer each way where they lie in pieces, quantized or not.
TEST_P(QuantizedExperts, AreSortedWhereTheyComeInPieces) {
  const auto counts = [](const Config& c) {
    std::map<std::string, int> found;
    const Built built = build(c);
    for (const Segment& segment : built.programs.programs[0].segments)
      for (const Op& op : segment.ops)
        if (const size_t at = op.path.find("mlp."); at != std::string::npos) ++found[op.path.substr(at)];
    return found;
  };
  for (const Mapping& m : kMappings) {
    SCOPED_TRACE(m.name);
    auto quantized = counts(mapped(base("mixtral", GetParam()), m));
    auto plain = counts(mapped(base("mixtral", Recipe::kBf16), m));
    for (const char* op : {"mlp.pieces.fwd", "mlp.sort.fwd", "mlp.unsort.fwd", "mlp.sort.bwd", "mlp.unsort.bwd"}) {
      EXPECT_EQ(quantized[op], m.exchanged() ? 2 : 0) << op;  // layers
      EXPECT_EQ(plain[op], quantized[op]) << op;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, QuantizedExperts,
                         testing::Values(Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise,
                                         Recipe::kMxfp8, Recipe::kNvfp4),
                         [](const auto& test) {
                           Config c;
                           c.precision.recipe = test.param;
                           return recipe_name(c);
                         });

}  // namespace
}  // namespace mbb::trainer
