// Every family as a small model: parameters and FLOPs equal the closed formulas, every mapping trains like one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "trainer/data/rng.h"
#include "trainer/models/flops.h"
#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/program/verify.h"
#include "trainer/run/precision_rules.h"
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

void expect_equal(const std::vector<StepReport>& many, const std::vector<StepReport>& one) {
  ASSERT_EQ(many.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(many[i].loss, one[i].loss, 1e-5 * one[i].loss) << "step " << i;
    EXPECT_NEAR(many[i].grad_norm, one[i].grad_norm, 2e-4 * one[i].grad_norm) << "step " << i;
  }
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

// What Hopper has products for: a GPU's tests train each of these.
TEST_P(Families, EveryNativeRecipeHasAProgram) {
  Config c = config_of(GetParam());
  in_sixteens(c);
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise}) {
    ASSERT_TRUE(runs_natively(recipe, 9, 0));
    c.precision.recipe = recipe;
    const auto built = build(c);
    EXPECT_TRUE(built.has_value()) << recipe_name(c) << ": " << format(built.error());
  }
}

// Those that a GPU multiplies in another format are trained there too, of sizes that their blocks divide.
TEST_P(Families, EveryRecipeHasAProgram) {
  Config c = config_of(GetParam());
  in_thirty_twos(c);
  for (const Recipe recipe : {Recipe::kFp32, Recipe::kBf16, Recipe::kFp8Delayed, Recipe::kFp8Current,
                              Recipe::kFp8Blockwise, Recipe::kMxfp8, Recipe::kNvfp4}) {
    c.precision.recipe = recipe;
    const auto built = build(c);
    EXPECT_TRUE(built.has_value()) << recipe_name(c) << ": " << format(built.error());
  }
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
    SCOPED_TRACE(m.name);
    Config c = config_of(GetParam());
    c.parallel.tensor_model_parallel_size = m.tp;
    c.parallel.pipeline_model_parallel_size = m.pp;
    c.parallel.sequence_parallel = m.sequence_parallel;
    c.parallel.gpus = m.tp * m.pp * m.dp;
    expect_equal(run(c), one);
  }
}

// Weights that several stages hold stay equal over more steps, whatever the optimizer shards.
TEST(SharedWeights, TiedEmbeddingsAndMtpOverStagesTrainLikeOneRank) {
  for (const char* name : {"gpt", "qwen25_tied", "deepseek_v3_mtp"}) {
    SCOPED_TRACE(name);
    Config c = config_of(family_of(name));
    c.model.num_layers = 4;
    c.train.train_iters = 5;
    c.train.micro_batch_size = 1;
    const std::vector<StepReport> one = run(c);
    c.parallel.pipeline_model_parallel_size = 2;
    expect_equal(run(c), one);
    c.parallel.virtual_pipeline_model_parallel_size = 2;
    expect_equal(run(c), one);
    c.parallel.tensor_model_parallel_size = 2;
    c.parallel.gpus = 8;
    expect_equal(run(c), one);
  }
}

// The encoder on ranks of its own, with its own TP: GPUs = DP · (encoder TP · PP + decoder TP · PP).
TEST(EncoderMesh, TrainsLikeOneRank) {
  Config c = config_of(family_of("t5"));
  c.train.train_iters = 5;
  const std::vector<StepReport> one = run(c);
  c.parallel.encoder_pipeline_model_parallel_size = 1;
  struct Sizes {
    int encoder_tp, tp, pp, dp;
    bool sequence_parallel = true;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{1, 2, 2, 1}, Sizes{1, 2, 2, 2}, Sizes{2, 2, 1, 1}, Sizes{2, 4, 1, 1},
                         Sizes{1, 2, 1, 1, false}}) {
    const int ranks = s.dp * (s.encoder_tp + s.tp * s.pp);
    SCOPED_TRACE("encoder tp " + std::to_string(s.encoder_tp) + ", decoder tp " + std::to_string(s.tp) + " pp " +
                 std::to_string(s.pp) + ", dp " + std::to_string(s.dp));
    c.parallel.encoder_tensor_model_parallel_size = s.encoder_tp;
    c.parallel.tensor_model_parallel_size = s.tp;
    c.parallel.pipeline_model_parallel_size = s.pp;
    c.parallel.sequence_parallel = s.sequence_parallel && s.tp > 1;
    c.parallel.gpus = ranks;
    const auto built = build(c);
    ASSERT_TRUE(built.has_value()) << format(built.error());
    EXPECT_EQ(built->layout.mesh.world_size(), ranks);
    EXPECT_EQ(built->layout.dp, s.dp);
    const Explain costs = explain(built->layout, built->programs);
    EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
    EXPECT_DOUBLE_EQ(costs.bubble_replayed, costs.bubble_formula);
    expect_equal(run(c), one);
  }
}

TEST(EncoderMesh, RefusalsNameKnobAndRule) {
  const auto what = [](const Small& family, void (*change)(Config&)) {
    Config c = config_of(family);
    c.parallel.tensor_model_parallel_size = 2;
    c.parallel.encoder_pipeline_model_parallel_size = 1;
    change(c);
    const auto l = resolve(c);
    EXPECT_FALSE(l.has_value());
    return l ? std::string() : l.error().what;
  };
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const Small& t5 = family_of("t5");
  says(what(family_of("gpt"), [](Config&) {}), "which has no encoder");
  says(what(t5,
            [](Config& c) {
              c.parallel.encoder_pipeline_model_parallel_size = 0;
              c.parallel.encoder_tensor_model_parallel_size = 1;
            }),
       "parallel.encoder_tensor_model_parallel_size = 1 needs parallel.encoder_pipeline_model_parallel_size = 1");
  says(what(t5, [](Config& c) { c.parallel.encoder_tensor_model_parallel_size = 4; }),
       "parallel.encoder_tensor_model_parallel_size = 4 does not divide parallel.tensor_model_parallel_size = 2");
  says(what(t5, [](Config& c) { c.parallel.sequence_parallel = false; }), "without sequence parallelism");
  says(what(t5,
            [](Config& c) {
              c.parallel.gpus = 8;
              c.data_parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGrads;
            }),
       "with sharded gradients");
  says(what(t5, [](Config& c) { c.parallel.gpus = 6; }),
       "parallel.gpus = 6 is no multiple of encoder + tensor × pipeline");
  says(what(t5,
            [](Config& c) {
              c.train.encoder_seq_length = 13;
              c.parallel.encoder_tensor_model_parallel_size = 1;
            }),
       "train.encoder_seq_length");
  says(what(t5,
            [](Config& c) {
              c.parallel.pipeline_model_parallel_size = 2;
              c.parallel.pipeline_layout = "Ett|L";
            }),
       "without a decoder layer");
  says(what(t5,
            [](Config& c) {
              c.model.num_layers = 4;
              c.parallel.pipeline_model_parallel_size = 2;
              c.parallel.virtual_pipeline_model_parallel_size = 2;
            }),
       "parallel.virtual_pipeline_model_parallel_size");
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
