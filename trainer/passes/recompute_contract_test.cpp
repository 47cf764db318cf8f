// Recompute: gradients equal bit for bit, kept bytes as the closed form says, nothing with state runs twice.
#include "trainer/passes/recompute.h"

#include <set>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/explain.h"

namespace mbb::trainer {
namespace {

std::string modules_of(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value());
  std::vector<std::string> names;
  for (const RecomputeModule& m : recompute_modules()) {
    Config one = config;
    one.memory.recompute_granularity = RecomputeGranularity::kSelective;
    one.memory.recompute_modules = m.name;
    if (resolve(one)) names.emplace_back(m.name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

int64_t count(const Program& program, const std::function<bool(const Op&)>& what) {
  int64_t n = 0;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) n += what(op) ? 1 : 0;
  return n;
}

class Recompute : public testing::TestWithParam<Small> {};

TEST_P(Recompute, GradientsAreEqualBitForBit) {
  Config c = config_of(GetParam());
  c.model.num_layers = 3;
  const Stepped kept = step_once(c);
  struct Way {
    const char* name;
    RecomputeGranularity granularity;
    RecomputeMethod method = RecomputeMethod::kUniform;
    int64_t layers = 1;
  };
  for (const Way& way : {Way{"selective", RecomputeGranularity::kSelective}, Way{"full", RecomputeGranularity::kFull},
                         Way{"pairs", RecomputeGranularity::kFull, RecomputeMethod::kUniform, 2},
                         Way{"block", RecomputeGranularity::kFull, RecomputeMethod::kBlock, 2}}) {
    SCOPED_TRACE(way.name);
    Config again = c;
    again.memory.recompute_granularity = way.granularity;
    again.memory.recompute_method = way.method;
    again.memory.recompute_num_layers = way.layers;
    if (way.granularity == RecomputeGranularity::kSelective) again.memory.recompute_modules = modules_of(c);
    const Stepped stepped = step_once(again);
    expect_equal(stepped, kept);
    const Program& program = stepped.programs.programs[0];
    EXPECT_GT(count(program, [](const Op& op) { return op.recompute; }), 0);
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops) {
        EXPECT_EQ(op.recompute, op.path.ends_with(".recompute")) << op.path;
        EXPECT_FALSE(op.recompute && segment.kind != SegmentKind::kBackward) << op.path;
        for (const TensorId id : op.out)
          EXPECT_FALSE(op.recompute && program.tensor(id).scope != Scope::kCall) << op.path << " writes state";
      }
    EXPECT_EQ(explain(stepped.layout, stepped.programs).model_flops, explain(kept.layout, kept.programs).model_flops);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recompute, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

// Products one expert after the other write one value in parts: all of them are made again, in their order.
TEST(RecomputeInTurn, ValuesThatSeveralOpsWriteAreMadeAgainWhole) {
  for (const Small& family : kFamilies) {
    if (std::string_view(family.name) != "mixtral" && std::string_view(family.name) != "deepseek_v3") continue;
    Config c = config_of(family);
    c.parallel.moe_grouped_gemm = false;
    const Stepped kept = step_once(c);
    for (const bool full : {true, false}) {
      SCOPED_TRACE(testing::Message() << family.name << (full ? " full" : " selective"));
      Config again = c;
      again.memory.recompute_granularity = full ? RecomputeGranularity::kFull : RecomputeGranularity::kSelective;
      if (!full) again.memory.recompute_modules = "moe";
      const Stepped stepped = step_once(again);
      expect_equal(stepped, kept);
      EXPECT_GT(count(stepped.programs.programs[0],
                      [](const Op& op) { return op.recompute && op.path.find(".expert1") != std::string::npos; }),
                0);
    }
  }
}

Config llama(Recipe recipe) {
  Config c;
  c.model.num_layers = 4;
  c.model.num_query_groups = 2;
  c.precision.recipe = recipe;
  return c;
}

TEST(RecomputeMappings, GradientsAreEqualUnderEveryMappingAndRecipe) {
  for (const Recipe recipe : {Recipe::kFp32, Recipe::kFp8Current})
    for (const bool fused : {false, true}) {
      Config c = llama(recipe);
      c.parallel.tensor_model_parallel_size = recipe == Recipe::kFp32 ? 2 : 1;
      c.parallel.pipeline_model_parallel_size = 2;
      c.parallel.gpus = c.parallel.tensor_model_parallel_size * 4;
      c.fusion.residual_fusion = fused;
      const Stepped kept = step_once(c);
      for (const char* modules : {"core_attn", "layernorm,act", "core_attn,layernorm,mlp", ""}) {
        SCOPED_TRACE(testing::Message() << "recipe " << static_cast<int>(recipe) << " fused " << fused << " modules "
                                        << modules);
        Config again = c;
        again.memory.recompute_granularity = *modules ? RecomputeGranularity::kSelective : RecomputeGranularity::kFull;
        if (*modules) again.memory.recompute_modules = modules;
        expect_equal(step_once(again), kept);
      }
    }
}

// Bytes of layer 1's values that live from its forward to its backward, a micro-batch.
int64_t kept_bytes(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value());
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value());
  int64_t bytes = 0;
  for (const Tensor& t : programs->programs[0].tensors)
    if (t.path.starts_with("layers.1.") && t.view_of == kNoTensor && t.scope == Scope::kMicroBatch) bytes += t.bytes();
  return bytes;
}

// NUMERICS, section 5; beside it every RMSNorm keeps one fp32 number a token.
TEST(RecomputeMemory, KeptBytesOfALayerFollowTheClosedForm) {
  for (const int64_t tp : {1, 2}) {
    Config c = llama(Recipe::kBf16);
    c.parallel.tensor_model_parallel_size = tp;
    c.train.micro_batch_size = 2;
    const auto layout = resolve(c);
    ASSERT_TRUE(layout.has_value());
    const ModelShape& m = layout->model;
    const int64_t h = m.hidden_size, q = m.query_size(), kv = m.kv_size(), f = m.ffn_hidden_size,
                  a = m.num_attention_heads;
    const int64_t tokens = layout->sequence * layout->micro_batch / tp;
    const int64_t norms = 2 * 4;
    const auto with = [&](const char* modules) {
      Config again = c;
      again.memory.recompute_granularity = *modules ? RecomputeGranularity::kSelective : RecomputeGranularity::kFull;
      if (*modules) again.memory.recompute_modules = modules;
      return kept_bytes(again);
    };
    const int64_t all = tokens * (8 * h + 4 * q + 4 * kv + 6 * f + 4 * a + norms);
    EXPECT_EQ(kept_bytes(c), all);
    EXPECT_EQ(with("act"), all - tokens * 2 * f);
    EXPECT_EQ(with("layernorm"), all - tokens * (4 * h + norms));
    EXPECT_EQ(with("mlp"), all - tokens * 6 * f);
    EXPECT_EQ(with("core_attn"), all - tokens * (2 * q + 4 * a));
    EXPECT_EQ(with("layernorm,mlp"), all - tokens * (4 * h + norms + 6 * f));
    EXPECT_EQ(with(""), tokens * 2 * h);
  }
}

TEST(RecomputeMemory, ThePlansPeakFallsWithEveryStep) {
  Config c = llama(Recipe::kBf16);
  c.model.num_layers = 8;
  c.parallel.pipeline_model_parallel_size = 2;
  const auto peak = [&](RecomputeGranularity granularity, const char* modules) {
    Config again = c;
    again.memory.recompute_granularity = granularity;
    if (*modules) again.memory.recompute_modules = modules;
    const auto layout = resolve(again);
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    return programs->plans[0].peak_live_bytes;
  };
  const int64_t none = peak(RecomputeGranularity::kNone, "");
  const int64_t act = peak(RecomputeGranularity::kSelective, "act");
  const int64_t more = peak(RecomputeGranularity::kSelective, "act,layernorm");
  const int64_t full = peak(RecomputeGranularity::kFull, "");
  EXPECT_LT(act, none);
  EXPECT_LT(more, act);
  EXPECT_LT(full, more);
}

TEST(RecomputeFlops, FullRunsTheForwardAgainButTheLastGemmOfALayer) {
  Config c = llama(Recipe::kFp32);
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value());
  const Explain e = explain(*layout, *programs);
  const ModelShape& m = layout->model;
  const auto tokens = static_cast<double>(layout->tokens_per_step());
  const auto h = static_cast<double>(m.hidden_size), q = static_cast<double>(m.query_size()),
             kv = static_cast<double>(m.kv_size()), f = static_cast<double>(m.ffn_hidden_size),
             s = static_cast<double>(layout->sequence), layers = static_cast<double>(m.num_layers);
  // Forward of qkv, proj, gate and up, and the causal core; the last projection's output is kept or read by nobody.
  EXPECT_DOUBLE_EQ(e.recompute_flops, tokens * layers * (2 * (h * (q + 2 * kv) + q * h + 2 * h * f) + 2 * s * q));
}

TEST(RecomputeRules, ErrorsNameKnobAndRemedy) {
  const auto refused = [](const std::function<void(Config&)>& change) {
    Config c = llama(Recipe::kFp32);
    change(c);
    const auto layout = resolve(c);
    return layout ? std::string("accepted") : layout.error().what;
  };
  EXPECT_EQ(refused([](Config& c) { c.memory.recompute_modules = "core_attn,mpl"; }),
            "memory.recompute_modules: no module is called 'mpl'");
  EXPECT_EQ(refused([](Config& c) { c.memory.recompute_modules = "mlp"; }),
            "memory.recompute_modules is given, and only memory.recompute_granularity = selective reads it");
  EXPECT_EQ(refused([](Config& c) { c.memory.recompute_method = RecomputeMethod::kBlock; }),
            "memory.recompute_method is given, and only memory.recompute_granularity = full reads it");
  EXPECT_EQ(refused([](Config& c) { c.memory.recompute_num_layers = 2; }),
            "memory.recompute_num_layers is given, and only memory.recompute_granularity = full reads it");
  const auto groups_of = [](int64_t layers) {
    return [layers](Config& c) {
      c.model.num_layers = 6;
      c.parallel.pipeline_model_parallel_size = 2;
      c.memory.recompute_granularity = RecomputeGranularity::kFull;
      c.memory.recompute_num_layers = layers;
    };
  };
  EXPECT_EQ(refused(groups_of(3)), "accepted");
  EXPECT_EQ(refused(groups_of(4)), "memory.recompute_num_layers = 4 is more than the 3 layers of a chunk");
  for (const char* modules : {"moe", "moe_act", "shared_experts", "mla_up_proj"}) {
    const std::string what = refused([&](Config& c) {
      c.memory.recompute_granularity = RecomputeGranularity::kSelective;
      c.memory.recompute_modules = modules;
    });
    EXPECT_TRUE(what.starts_with(std::string("memory.recompute_modules names ") + modules)) << what;
  }
}

}  // namespace
}  // namespace mbb::trainer
