// Fusions on or off: the same numbers within rounding, another program, and refusal where they would do nothing.
#include "trainer/passes/fusion.h"

#include <cmath>
#include <map>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/explain.h"

namespace mbb::trainer {
namespace {

std::map<std::string_view, int64_t> kinds_of(const Stepped& stepped) {
  std::map<std::string_view, int64_t> kinds;
  for (const Segment& segment : stepped.programs.programs[0].segments)
    for (const Op& op : segment.ops) ++kinds[op.kind->name];
  return kinds;
}

// ‖a − b‖ ≤ bound · max(‖b‖, 1e-3 · global norm), tensor by tensor.
void expect_near(const Stepped& a, const Stepped& b, double bound) {
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t rank = 0; rank < a.grads.size(); ++rank) {
    EXPECT_NEAR(a.outputs[rank].loss_sum, b.outputs[rank].loss_sum, bound * b.outputs[rank].loss_sum);
    double global = 0;
    for (const auto& [path, values] : b.grads[rank])
      for (const float v : values) global += static_cast<double>(v) * static_cast<double>(v);
    ASSERT_EQ(a.grads[rank].size(), b.grads[rank].size());
    for (const auto& [path, values] : b.grads[rank]) {
      const std::vector<float>& others = a.grads[rank].at(path);
      double norm = 0, error = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        norm += std::pow(static_cast<double>(values[i]), 2);
        error += std::pow(static_cast<double>(values[i]) - static_cast<double>(others[i]), 2);
      }
      EXPECT_LE(std::sqrt(error), bound * std::max(std::sqrt(norm), 1e-3 * std::sqrt(global))) << path;
    }
  }
}

struct Switch {
  const char* knob;
  void (*turn)(Config&);
  std::vector<const char*> appear;  // op kinds that only the turned program has
};

const Switch kSwitches[] = {
    {"attention_backend = unfused",
     [](Config& c) { c.fusion.attention_backend = AttentionBackend::kUnfused; },
     {"attention_scores", "masked_softmax", "attention_context", "masked_softmax_grad"}},
    {"masked_softmax_fusion = false",
     [](Config& c) {
       c.fusion.attention_backend = AttentionBackend::kUnfused;
       c.fusion.masked_softmax_fusion = false;
     },
     {"scale_mask", "softmax", "scale_mask_grad", "softmax_grad"}},
    {"gradient_accumulation_fusion = false",
     [](Config& c) { c.fusion.gradient_accumulation_fusion = false; },
     {"cast"}},
    {"swiglu_fusion = true", [](Config& c) { c.fusion.swiglu_fusion = true; }, {"gemm_swiglu", "gemm_swiglu_grad"}},
    {"bias_activation_fusion = true",
     [](Config& c) { c.fusion.bias_activation_fusion = true; },
     {"bias_activation", "bias_activation_grad"}},
    {"bias_dropout_fusion = true", [](Config& c) { c.fusion.bias_dropout_fusion = true; }, {"bias_dropout_add"}},
    {"apply_rope_fusion = false", [](Config& c) { c.fusion.apply_rope_fusion = false; }, {}},
};

class Fusions : public testing::TestWithParam<Small> {};

TEST_P(Fusions, ChangeTheProgramAndNotTheNumbers) {
  const Config c = config_of(GetParam());
  const Stepped apart = step_once(c);
  const auto before = kinds_of(apart);
  for (const Switch& s : kSwitches) {
    SCOPED_TRACE(s.knob);
    Config turned = c;
    s.turn(turned);
    if (const auto layout = resolve(turned); !layout) {
      EXPECT_NE(layout.error().what.find("with model"), std::string::npos) << layout.error().what;
      continue;
    }
    const Stepped stepped = step_once(turned);
    expect_near(stepped, apart, 2e-5);
    EXPECT_NE(program_hash(stepped.programs), program_hash(apart.programs));
    const auto after = kinds_of(stepped);
    for (const char* kind : s.appear) {
      EXPECT_FALSE(before.contains(kind)) << kind;
      EXPECT_TRUE(after.contains(kind)) << kind;
    }
    EXPECT_EQ(explain(stepped.layout, stepped.programs).model_flops, explain(apart.layout, apart.programs).model_flops);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fusions, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(FusionTogether, EveryFusionUnderTpSpPpWithRecompute) {
  Config c = config_of(kFamilies[1]);  // GPT with biases
  c.train.hidden_dropout = c.train.attention_dropout = 0.1;
  c.parallel.tensor_model_parallel_size = 2;
  c.parallel.pipeline_model_parallel_size = 2;
  const Stepped apart = step_once(c);
  Config all = c;
  all.fusion = {true, false, false, true, false, true, true, true, AttentionBackend::kUnfused};
  const Stepped fused = step_once(all);
  expect_near(fused, apart, 2e-5);
  auto kinds = kinds_of(fused);
  EXPECT_EQ(kinds["bias_add"], 1) << "of qkv alone";
  EXPECT_EQ(kinds["dropout"], 1 + 2 + 1) << "of the embedding, and their backward";
  all.memory.recompute_granularity = RecomputeGranularity::kFull;
  expect_equal(step_once(all), fused);
}

TEST(RopeFusion, LatentAttentionTurnsInItsPacking) {
  Config c;
  deepseek(c);
  c.train.seq_length = 16;
  c.train.global_batch_size = 2;
  c.parallel.tensor_model_parallel_size = 2;
  const Stepped fused = step_once(c);
  EXPECT_FALSE(kinds_of(fused).contains("rope"));
  Config turned = c;
  turned.fusion.apply_rope_fusion = false;
  const Stepped apart = step_once(turned);
  auto kinds = kinds_of(apart);
  EXPECT_EQ(kinds["rope"], 4 * kinds["latent_pack"]) << "of queries and of keys, forward and backward";
  expect_near(fused, apart, 2e-5);
  turned = c;
  turned.memory.recompute_granularity = RecomputeGranularity::kSelective;
  turned.memory.recompute_modules = "mla_up_proj";
  expect_equal(step_once(turned), fused);
}

TEST(SwigluFusion, SameBitsInBf16UnderTpSpWithFullRecompute) {
  Config c = config_of(kFamilies[2]);
  c.precision.recipe = Recipe::kBf16;
  c.parallel.tensor_model_parallel_size = 2;
  const Stepped apart = step_once(c);
  c.fusion.swiglu_fusion = true;
  const Stepped fused = step_once(c);
  expect_equal(fused, apart);
  auto kinds = kinds_of(fused);
  EXPECT_GT(kinds["gemm_swiglu"], 0);
  EXPECT_EQ(kinds["gemm_swiglu_grad"], kinds["gemm_swiglu"]);
  EXPECT_EQ(kinds["swiglu"] + kinds["swiglu_grad"], 0);
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  expect_equal(step_once(c), apart);
}

TEST(SwigluFusion, IsRefusedWhereSomethingStandsBetween) {
  const auto refused = [](void (*turn)(Config&), const char* other) {
    Config c = config_of(kFamilies[2]);
    c.fusion.swiglu_fusion = true;
    turn(c);
    const auto layout = resolve(c);
    ASSERT_FALSE(layout.has_value()) << other;
    EXPECT_NE(layout.error().what.find("fusion.swiglu_fusion"), std::string::npos) << layout.error().what;
    EXPECT_NE(layout.error().what.find(other), std::string::npos) << layout.error().what;
  };
  refused([](Config& c) { c.precision.recipe = Recipe::kFp8Current; }, "precision.recipe");
  refused([](Config& c) { c.memory.lora_rank = 4; }, "memory.lora_rank");
  refused(
      [](Config& c) {
        c.memory.recompute_granularity = RecomputeGranularity::kSelective;
        c.memory.recompute_modules = "act";
      },
      "memory.recompute_modules");
  refused(
      [](Config& c) {
        c.parallel.tensor_model_parallel_size = 2;
        c.tp_overlap.tp_comm_overlap = true;
      },
      "overlap.tp_comm_overlap");
}

TEST(FusionMemory, UnfusedAttentionKeepsItsWeightsAndCoreRecomputeDropsThem) {
  Config c = config_of(kFamilies[2]);
  const auto kept = [](const Config& config) {
    const auto layout = resolve(config);
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    int64_t bytes = 0;
    for (const Tensor& t : programs->programs[0].tensors)
      if (t.path.starts_with("layers.1.") && t.view_of == kNoTensor && t.scope == Scope::kMicroBatch)
        bytes += t.bytes();
    return bytes;
  };
  const int64_t flash = kept(c);
  const auto layout = resolve(c);
  const int64_t b = layout->micro_batch, a = layout->model.num_attention_heads, s = layout->sequence;
  c.fusion.attention_backend = AttentionBackend::kUnfused;
  // The matrix of weights instead of one log-sum-exp a row.
  EXPECT_EQ(kept(c), flash + 4 * b * a * s * s - 4 * b * a * s);
  c.memory.recompute_granularity = RecomputeGranularity::kSelective;
  const int64_t context = 4 * s * b * layout->model.query_size();
  EXPECT_EQ(kept(c), flash - 4 * b * a * s - context);
}

TEST(GradientAccumulation, ProductsAreInTheComputeType) {
  Config c = config_of(kFamilies[2]);
  c.precision.recipe = Recipe::kBf16;
  c.fusion.gradient_accumulation_fusion = false;
  const Stepped split = step_once(c);
  const Program& program = split.programs.programs[0];
  int64_t products = 0;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) {
      if (op.role != Role::kWgrad || op.kind->name != "gemm") continue;
      ++products;
      EXPECT_EQ(op.when, When::kAlways);
      EXPECT_EQ(program.tensor(op.out[0]).dtype, DType::kBf16);
      EXPECT_FALSE(std::get<GemmAttrs>(op.attrs).accumulate);
    }
  EXPECT_EQ(products, split.layout.model.num_layers * 4 + 1);
  c.fusion.gradient_accumulation_fusion = true;
  expect_near(split, step_once(c), 1e-2);
}

}  // namespace
}  // namespace mbb::trainer
