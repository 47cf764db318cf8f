// The precision recipes as programs and as numbers: which GEMMs they take, what their states see, how near they stay to
// bf16 and one rank, and what they refuse.
#include "trainer/passes/precision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "trainer/data/rng.h"
#include "trainer/program/explain.h"
#include "trainer/program/verify.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

constexpr std::array kQuantized = {Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise, Recipe::kMxfp8,
                                   Recipe::kNvfp4};

// Tokens with structure to learn: each follows from the one before, with noise.
Status sample(int64_t index, std::span<int32_t> tokens) {
  const RandomStream random(7, "test.tokens", 0);
  int32_t token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0) % 256);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>((bits >> 8) % 256) : (token * 5 + 17) % 256;
    tokens[i] = token;
  }
  return {};
}

// Every matrix, cut over two ranks or not, divides into blocks of 128.
Config blockable() {
  Config c;
  c.model.hidden_size = 128;
  c.model.ffn_hidden_size = 256;
  c.model.num_attention_heads = 4;
  c.model.num_query_groups = 4;
  c.model.kv_channels = 64;
  c.train.seq_length = 64;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.train.train_iters = 5;
  return c;
}

Config with(Recipe recipe, Config c = blockable()) {
  c.precision.recipe = recipe;
  return c;
}

StepPrograms programs_of(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  const Status world = verify_world(layout->mesh, programs->by_rank(layout->mesh));
  EXPECT_TRUE(world.has_value()) << (world ? "" : world.error().what);
  return std::move(*programs);
}

std::vector<double> losses(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  const auto result = train(*layout, programs_of(config), sample);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().what);
  std::vector<double> all;
  if (result)
    for (const StepReport& step : result->steps) all.push_back(step.loss);
  return all;
}

template <typename Visit>
void each_op(const Program& program, Visit&& visit) {
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) visit(segment, op);
}

TEST(Precision, TakesTheBlocksLinearLayersAndNothingElse) {
  for (const Recipe recipe : kQuantized) {
    const StepPrograms built = programs_of(with(recipe));
    std::map<std::string_view, int> roles;
    each_op(built.programs[0], [&](const Segment&, const Op& op) {
      const bool quantized = op.kind->name == "gemm_scaled" || op.kind->name == "gemm_blocks";
      EXPECT_EQ(quantized,
                op.role != Role::kNone && block_layer(op.path) >= 0 && (op.kind->name == "gemm" || quantized))
          << op.path;
      if (quantized) ++roles[name(op.role)];
    });
    // Four linear layers in each of two layers; wgrad once overwrites and later accumulates.
    EXPECT_EQ(roles["fprop"], 8);
    EXPECT_EQ(roles["dgrad"], 8);
    EXPECT_EQ(roles["wgrad"], 16);
  }
}

TEST(Precision, OperandsHaveTheRecipesFormats) {
  const std::map<Recipe, std::array<DType, 2>> formats{{Recipe::kFp8Delayed, {DType::kE4M3, DType::kE5M2}},
                                                       {Recipe::kFp8Current, {DType::kE4M3, DType::kE5M2}},
                                                       {Recipe::kFp8Blockwise, {DType::kE4M3, DType::kE4M3}},
                                                       {Recipe::kMxfp8, {DType::kE4M3, DType::kE4M3}},
                                                       {Recipe::kNvfp4, {DType::kE2M1, DType::kE2M1}}};
  for (const auto& [recipe, of] : formats) {
    const StepPrograms built = programs_of(with(recipe));
    const Program& program = built.programs[0];
    each_op(program, [&](const Segment&, const Op& op) {
      if (op.kind->name != "gemm_scaled" && op.kind->name != "gemm_blocks") return;
      EXPECT_EQ(program.tensor(op.in[0]).dtype, of[op.role == Role::kFprop ? 0 : 1]) << op.path;
      EXPECT_EQ(program.tensor(op.in[1]).dtype, of[0]) << op.path;
      if (const auto* scaled = std::get_if<ScaledGemmAttrs>(&op.attrs)) {
        EXPECT_EQ(scaled->fast, op.role == Role::kFprop) << op.path;
      } else {
        const auto& blocks = std::get<GemmBlocksAttrs>(op.attrs);
        EXPECT_FALSE(blocks.a_square) << op.path;
        EXPECT_EQ(blocks.b_square, recipe != Recipe::kMxfp8 && op.role != Role::kWgrad) << op.path;
      }
    });
  }
}

TEST(Precision, AWeightIsQuantizedOnceAStep) {
  for (const Recipe recipe : kQuantized) {
    const StepPrograms built = programs_of(with(recipe));
    const Program& program = built.programs[0];
    int weights = 0;
    each_op(program, [&](const Segment&, const Op& op) {
      if (!op.kind->name.starts_with("quantize") || program.tensor(op.in[0]).category != Category::kWeight) return;
      EXPECT_EQ(op.when, When::kFirst) << op.path;
      for (const TensorId id : op.out) EXPECT_EQ(program.tensor(id).scope, Scope::kStep);
      ++weights;
    });
    EXPECT_EQ(weights, 8);
  }
}

TEST(Precision, FirstAndLastLayersStayInBf16) {
  for (const Recipe recipe : kQuantized) {
    Config c = with(recipe);
    c.model.num_layers = 5;
    c.precision.first_last_layers_bf16 = 2;
    const StepPrograms built = programs_of(c);
    std::set<int64_t> quantized, plain;
    each_op(built.programs[0], [&](const Segment&, const Op& op) {
      if (op.role == Role::kNone || block_layer(op.path) < 0 || !op.kind->model_flops) return;
      if (op.kind->name == "gemm")
        plain.insert(block_layer(op.path));
      else if (op.kind->name.starts_with("gemm_"))
        quantized.insert(block_layer(op.path));
    });
    EXPECT_EQ(quantized, (std::set<int64_t>{2}));
    EXPECT_EQ(plain, (std::set<int64_t>{0, 1, 3, 4}));
  }
}

TEST(Precision, LayersByPath) {
  EXPECT_EQ(block_layer("layers.12.mlp.fc1.fwd"), 12);
  EXPECT_EQ(block_layer("encoder.layers.3.attn.qkv.dgrad"), 3);
  EXPECT_EQ(block_layer("mtp.0.layer.mlp.fc2.wgrad"), 0);
  EXPECT_EQ(block_layer("mtp.0.proj_hidden.fwd"), -1);
  EXPECT_EQ(block_layer("head.fwd"), -1);
  EXPECT_EQ(block_layer("layers"), -1);
}

TEST(DelayedScalingProgram, EveryStateHasOneWriterAStep) {
  for (const int tp : {1, 2}) {
    Config c = with(Recipe::kFp8Delayed);
    c.parallel.tensor_model_parallel_size = tp;
    c.parallel.gpus = 2 * tp;
    const StepPrograms built = programs_of(c);
    const Program& program = built.programs[0];
    std::map<TensorId, int> writers, recorded;
    int reduced = 0, quantized = 0;
    each_op(program, [&](const Segment& segment, const Op& op) {
      if (op.kind->name == "scale_update") {
        EXPECT_EQ(segment.kind, SegmentKind::kGradSync);
        for (const TensorId id : op.out) ++writers[id];
      }
      if (op.kind->name == "amax_record" && op.when == When::kFirst)
        for (const TensorId id : op.in) ++recorded[id];
      if (op.kind->name == "quantize_delayed") ++quantized;
      if (op.kind->name == "all_reduce" && op.path.starts_with("fp8.")) {
        EXPECT_EQ(std::get<CommAttrs>(op.attrs).group, GroupKind::kTpDpCp);
        EXPECT_EQ(std::get<CommAttrs>(op.attrs).reduce, ReduceKind::kMax);
        ++reduced;
      }
    });
    EXPECT_EQ(writers.size(), 4U);  // history and scales of forward and backward
    for (const auto& [id, count] : writers) EXPECT_EQ(count, 1) << program.tensor(id).path;
    // Two layers of four inputs, weights and gradients each; what the backward gathers again reads the state of the
    // forward and feeds none.
    EXPECT_EQ(recorded.size(), 2U * 4 * 3);
    for (const auto& [id, count] : recorded) EXPECT_EQ(count, 1) << program.tensor(id).path;
    EXPECT_EQ(reduced, 2);
    EXPECT_EQ(quantized, tp == 1 ? 24 : 28);
  }
}

TEST(DelayedScalingProgram, KnobsChangeTheUpdate) {
  const auto hash = [](int64_t margin, int64_t length, AmaxAlgorithm algorithm) {
    Config c = with(Recipe::kFp8Delayed);
    c.precision.fp8_margin = margin;
    c.precision.fp8_amax_history_len = length;
    c.precision.fp8_amax_compute_algo = algorithm;
    return losses(c).back();
  };
  const double usual = hash(0, 1024, AmaxAlgorithm::kMax);
  EXPECT_NE(hash(1, 1024, AmaxAlgorithm::kMax), usual);
  EXPECT_NE(hash(0, 1, AmaxAlgorithm::kMax), usual);
  EXPECT_EQ(hash(0, 1, AmaxAlgorithm::kMax), hash(0, 1024, AmaxAlgorithm::kMostRecent));
}

TEST(Precision, PowerOfTwoScalesAreAChoice) {
  Config c = with(Recipe::kFp8Blockwise);
  const auto usual = losses(c);
  c.precision.fp8_power_of_two_scales = false;
  EXPECT_NE(losses(c), usual);
}

TEST(PrecisionExplained, NamesFormatsPerGemmAndTheShareOfModelFlops) {
  const auto text_of = [](const Config& c, Explain& e) {
    e = explain(*resolve(c), programs_of(c));
    const auto text = to_text(e, {.ops = true});
    EXPECT_TRUE(text.has_value());
    return text.value_or("");
  };
  Explain bf16, blocks, partly;
  const std::string plain = text_of(with(Recipe::kBf16), bf16);
  EXPECT_NE(plain.find("numbers  bf16; linear layers of blocks, which FP8 could take: "), std::string::npos) << plain;
  EXPECT_EQ(bf16.quantized_flops, 0);
  EXPECT_GT(bf16.eligible_flops, 0.5 * bf16.model_flops);
  EXPECT_LT(bf16.eligible_flops, bf16.model_flops);  // the LM head and attention's core stay

  const std::string text = text_of(with(Recipe::kFp8Blockwise), blocks);
  EXPECT_NE(text.find("numbers  fp8_blockwise takes "), std::string::npos);
  EXPECT_NE(text.find("gemm_blocks e4m3*e4m3 in blocks of 128 128x768x128"), std::string::npos) << text;
  EXPECT_EQ(blocks.quantized_flops, blocks.eligible_flops);
  EXPECT_EQ(blocks.eligible_flops, bf16.eligible_flops);
  EXPECT_EQ(blocks.model_flops, bf16.model_flops);

  Config c = with(Recipe::kFp8Current);
  c.model.num_layers = 4;
  c.precision.first_last_layers_bf16 = 1;
  EXPECT_NE(text_of(c, partly).find("gemm_scaled e5m2*e4m3 "), std::string::npos);
  EXPECT_DOUBLE_EQ(partly.quantized_flops, partly.eligible_flops / 2);
}

TEST(Precision, RunsNativelyWhereTheTensorCoresHaveIt) {
  EXPECT_TRUE(runs_natively(Recipe::kFp8Current, 9, 0));
  EXPECT_TRUE(runs_natively(Recipe::kFp8Delayed, 8, 9));
  EXPECT_FALSE(runs_natively(Recipe::kFp8Current, 8, 0));
  EXPECT_TRUE(runs_natively(Recipe::kFp8Blockwise, 9, 0));
  EXPECT_FALSE(runs_natively(Recipe::kMxfp8, 9, 0));
  EXPECT_TRUE(runs_natively(Recipe::kNvfp4, 10, 0));
  EXPECT_FALSE(runs_natively(Recipe::kBf16, 7, 5));
}

TEST(PrecisionFused, ResidualsAndAccumulationLeaveTheNumbers) {
  for (const Recipe recipe : {Recipe::kFp8Blockwise, Recipe::kMxfp8, Recipe::kFp8Delayed}) {
    Config c = with(recipe);
    const std::vector<double> usual = losses(c);
    c.fusion.residual_fusion = true;
    const std::vector<double> fused = losses(c);
    int added = 0;
    each_op(programs_of(c).programs[0], [&](const Segment&, const Op& op) {
      const auto* blocks = std::get_if<GemmBlocksAttrs>(&op.attrs);
      added += op.kind->name == "gemm_scaled_add" || (blocks && blocks->accumulate && op.role == Role::kFprop) ? 1 : 0;
    });
    EXPECT_EQ(added, 4);
    c.fusion.residual_fusion = false;
    c.fusion.gradient_accumulation_fusion = false;
    const std::vector<double> apart = losses(c);
    for (size_t i = 0; i < usual.size(); ++i) {
      EXPECT_NEAR(fused[i], usual[i], 1e-2 * usual[i]) << "step " << i;
      EXPECT_NEAR(apart[i], usual[i], 1e-2 * usual[i]) << "step " << i;
    }
  }
}

class Recipes : public testing::TestWithParam<Recipe> {};

std::string recipe_label(const testing::TestParamInfo<Recipe>& info) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"};
  return kNames[static_cast<size_t>(info.param)];
}

// NUMERICS.md 3 by mapping: the distance to one rank is at most twice what the recipe itself costs, step by step.
TEST_P(Recipes, MappingsStayWithinTwiceTheRecipesError) {
  const std::vector<double> exact = losses(with(Recipe::kFp32)), one = losses(with(GetParam()));
  double cost = 0;
  for (size_t i = 0; i < one.size(); ++i) cost = std::max(cost, std::abs(one[i] - exact[i]));
  EXPECT_GT(cost, 0);
  EXPECT_LT(cost, 0.05 * exact.front());
  struct Mapping {
    const char* name;
    int tp, pp, dp;
    bool sequence_parallel;
  };
  for (const Mapping& m :
       {Mapping{"tp2", 2, 1, 1, false}, Mapping{"tp2_sp", 2, 1, 1, true}, Mapping{"pp2", 1, 2, 1, false},
        Mapping{"dp2", 1, 1, 2, false}, Mapping{"tp2_sp_pp2_dp2", 2, 2, 2, true}}) {
    Config c = with(GetParam());
    c.parallel.tensor_model_parallel_size = m.tp;
    c.parallel.pipeline_model_parallel_size = m.pp;
    c.parallel.gpus = m.tp * m.pp * m.dp;
    c.parallel.sequence_parallel = m.sequence_parallel;
    const std::vector<double> many = losses(c);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_LE(std::abs(many[i] - one[i]), 2 * cost) << m.name << " step " << i;
    if (m.tp == 1) {
      // Nothing that is quantized is cut: the same numbers but for the order of sums over ranks.
      for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-3 * one[i]) << m.name << " step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, testing::ValuesIn(kQuantized), recipe_label);

std::string refusal(const Config& config) {
  const auto layout = resolve(config);
  if (!layout) return format(layout.error());
  const auto programs = build_programs(*layout);
  return programs ? "" : format(programs.error());
}

TEST(PrecisionRefuses, ShapesThatDoNotDivideIntoBlocks) {
  Config c = with(Recipe::kFp8Blockwise);
  c.model.ffn_hidden_size = 320;
  EXPECT_EQ(refusal(c), "");  // two blocks and a half
  c.model.ffn_hidden_size = 328;
  EXPECT_EQ(refusal(c),
            "error: precision.recipe: op layers.0.mlp.act.out.quantize: a matrix of 128 x 328 does not divide into "
            "blocks of 128, whose last one covers a multiple of 16\n"
            "  hint: make micro_batch_size x seq_length and the model's widths, both over "
            "tensor_model_parallel_size where they are cut, multiples of 16; or take recipe = fp8_current");
  c.model.ffn_hidden_size = 320;
  c.precision.recipe = Recipe::kMxfp8;
  EXPECT_EQ(refusal(c), "");
  c.train.micro_batch_size = 1;
  c.train.seq_length = 48;
  EXPECT_NE(refusal(c).find("blocks of 32"), std::string::npos);
  c.precision.recipe = Recipe::kNvfp4;
  EXPECT_EQ(refusal(c), "");
}

// Tokens and widths over ranks that the tiles of a GPU.s kernels do not divide; the CPU takes them.
TEST(PrecisionRefuses, RowsThatAGpuDoesNotQuantize) {
  Config c = blockable();
  c.precision.recipe = Recipe::kFp8Current;
  c.parallel.tensor_model_parallel_size = 4;
  c.parallel.gpus = 4;
  c.train.micro_batch_size = 1;
  const auto answer = [&](Device device, int64_t ffn, int64_t tokens) {
    c.host.device = device;
    c.model.ffn_hidden_size = ffn;
    c.train.seq_length = tokens;
    const auto layout = resolve(c);
    EXPECT_TRUE(layout) << (layout ? "" : format(layout.error()));
    const auto built = build_programs(*layout);
    return built ? std::string() : format(built.error());
  };
  EXPECT_EQ(answer(Device::kCuda, 256, 64), "");
  EXPECT_EQ(answer(Device::kCpu, 256, 72), "");
  const std::string rows = answer(Device::kCuda, 256, 72);
  EXPECT_NE(rows.find("precision.recipe: op "), std::string::npos) << rows;
  EXPECT_NE(rows.find("this one is 72 x "), std::string::npos) << rows;
  EXPECT_NE(rows.find("tensor_model_parallel_size"), std::string::npos) << rows;
  const std::string weight = answer(Device::kCuda, 176, 64);  // gate and up: two 44 rows a rank
  EXPECT_NE(weight.find("op layers.0.mlp.fc1.weight.quantize"), std::string::npos) << weight;
  EXPECT_NE(weight.find("this one is 88 x 128"), std::string::npos) << weight;
}

TEST(PrecisionRefuses, KnobsOfOtherRecipes) {
  Config c = with(Recipe::kFp8Current);
  c.precision.fp8_margin = 1;
  EXPECT_EQ(refusal(c),
            "error: precision.fp8_margin = 1 has no effect with precision.recipe = fp8_current\n"
            "  hint: it belongs to fp8_delayed; leave it at 0 otherwise");
  c = with(Recipe::kMxfp8);
  c.precision.fp8_power_of_two_scales = false;
  EXPECT_NE(refusal(c).find("precision.fp8_power_of_two_scales = false has no effect"), std::string::npos);
  c = with(Recipe::kBf16);
  c.precision.first_last_layers_bf16 = 1;
  EXPECT_NE(refusal(c).find("precision.first_last_layers_bf16 = 1 has no effect"), std::string::npos);
  c = with(Recipe::kFp8Current);
  c.precision.first_last_layers_bf16 = 1;
  EXPECT_NE(refusal(c).find("leaves none of 2 layers to quantize"), std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
