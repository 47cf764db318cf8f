// Every family as a small model: parameters and FLOPs equal the closed formulas, every mapping trains like one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "trainer/data/rng.h"
#include "trainer/models/flops.h"
#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/program/verify.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

// Each token follows from the one before, with noise.
Status sample(int64_t index, std::span<int32_t> tokens) {
  const RandomStream random(7, "test.tokens", 0);
  int32_t token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0) % 64);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>((bits >> 8) % 64) : (token * 5 + 17) % 64;
    tokens[i] = token;
  }
  return {};
}

struct Built {
  Layout layout;
  StepPrograms programs;
};

Result<Built> build(const Config& config) {
  MB_ASSIGN(Layout layout, resolve(config));
  MB_ASSIGN(StepPrograms programs, build_programs(layout));
  const auto by_rank = programs.by_rank(layout.mesh);
  MB_TRY(verify_world(layout.mesh, by_rank));
  return Built{std::move(layout), std::move(programs)};
}

std::vector<StepReport> run(const Config& config) {
  const auto built = build(config);
  EXPECT_TRUE(built.has_value()) << (built ? "" : format(built.error()));
  if (!built) return {};
  const auto result = train(built->layout, built->programs, sample);
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  return result ? result->steps : std::vector<StepReport>{};
}

class Families : public testing::TestWithParam<Small> {};

TEST_P(Families, ParametersAndFlopsEqualTheFormulas) {
  const auto built = build(config_of(GetParam()));
  ASSERT_TRUE(built.has_value()) << format(built.error());
  int64_t parameters = 0;
  for (const Tensor& t : built->programs.programs[0].tensors)
    if (t.main_grad != kNoTensor) parameters += t.shape.elements();
  EXPECT_EQ(parameters, count_parameters(built->layout.model).total());
  const Explain costs = explain(built->layout, built->programs);
  EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
}

TEST_P(Families, ShardedPartsAddUpToTheFormulas) {
  Config c = config_of(GetParam());
  c.parallel.tensor_model_parallel_size = 2;
  c.parallel.sequence_parallel = true;
  const auto built = build(c);
  ASSERT_TRUE(built.has_value()) << format(built.error());
  const Explain costs = explain(built->layout, built->programs);
  EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
}

TEST_P(Families, Bf16StaysNearFp32) {
  Config c = config_of(GetParam());
  const std::vector<StepReport> exact = run(c);
  c.precision.recipe = Recipe::kBf16;
  const std::vector<StepReport> rounded = run(c);
  ASSERT_EQ(rounded.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(rounded[i].loss, exact[i].loss, 1e-2 * exact[i].loss);
}

// Four ways at once: tensor + sequence parallel, tensor parallel alone, data parallel, and stages where there can be.
TEST_P(Families, EveryMappingTrainsLikeOneRank) {
  const std::vector<StepReport> one = run(config_of(GetParam()));
  ASSERT_EQ(one.size(), 3U);
  struct Mapping {
    const char* name;
    int tp, pp, dp;
    bool sequence_parallel;
  };
  for (const Mapping& m : {Mapping{"tp2_sp", 2, 1, 1, true}, Mapping{"tp2", 2, 1, 1, false},
                           Mapping{"pp2", 1, 2, 1, false}, Mapping{"dp2", 1, 1, 2, false}}) {
    if (m.pp > 1 && !GetParam().stages) continue;
    SCOPED_TRACE(m.name);
    Config c = config_of(GetParam());
    c.parallel.tensor_model_parallel_size = m.tp;
    c.parallel.pipeline_model_parallel_size = m.pp;
    c.parallel.sequence_parallel = m.sequence_parallel;
    c.parallel.gpus = m.tp * m.pp * m.dp;
    const std::vector<StepReport> many = run(c);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(many[i].loss, one[i].loss, 1e-5 * one[i].loss) << "step " << i;
      EXPECT_NEAR(many[i].grad_norm, one[i].grad_norm, 2e-4 * one[i].grad_norm) << "step " << i;
    }
  }
}

TEST(FamilyStages, AreRefusedWhereWeightsAreShared) {
  for (const Small& family : kFamilies) {
    if (family.stages) continue;
    SCOPED_TRACE(family.name);
    Config c = config_of(family);
    c.parallel.pipeline_model_parallel_size = 2;
    const auto layout = resolve(c);
    ASSERT_FALSE(layout.has_value());
    EXPECT_NE(layout.error().what.find("parallel.pipeline_model_parallel_size"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
