// Every family as a small model trains on the device like on the oracle, captured as graphs and not.
#include <cstdio>

#include "trainer/data/rng.h"
#include "trainer/models/small_families.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/near_fp32_test.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/train.h"

namespace mbb::trainer::cuda {
namespace {

// Each token follows from the one before, with noise.
Status sample(int64_t index, std::span<int32_t> tokens) {
  const RandomStream random(7, "test.tokens", 0);
  auto token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0) % 64);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>((bits >> 8) % 64) : (token * 5 + 17) % 64;
    tokens[i] = token;
  }
  return {};
}

using Losses = std::vector<double> (*)(const Config&);
std::vector<double> losses(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  if (!layout) return {};
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  if (!programs) return {};
  const auto result = train(*layout, *programs, sample);
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  return result ? losses_of(result->steps) : std::vector<double>{};
}

class FamiliesOnDevice : public GpuTest, public testing::WithParamInterface<Small> {
 protected:
  static std::vector<double> on_device(Config c, bool graphs) {
    c.host.device = trainer::Device::kCuda;
    c.host.enable_cuda_graph = graphs;
    return losses(c);
  }

  // Both distances are printed.
  static void expect_as_near(const Config& c, const Fp32Draws<Losses>& fp32) {
    const double own = fp32.own_distance(c);
    for (const bool graphs : {false, true}) {
      const double device = furthest(on_device(c, graphs), fp32.first());
      EXPECT_LT(device, near_fp32_bound(own)) << recipe_name(c) << " graphs " << graphs;
      printf("%s, graphs %d: %.1e from fp32, the oracle %.1e\n", recipe_name(c).c_str(), graphs, device, own);
    }
  }
};

TEST_P(FamiliesOnDevice, Fp32EqualsTheOracle) {
  const Config c = config_of(GetParam());
  const std::vector<double> oracle = losses(c);
  for (const bool graphs : {false, true})
    EXPECT_LT(furthest(on_device(c, graphs), oracle), 1e-4) << "graphs " << graphs;
}

TEST_P(FamiliesOnDevice, Bf16StaysAsNearAsTheOracles) {
  Config c = config_of(GetParam());
  c.precision.recipe = Recipe::kBf16;
  expect_as_near(c, {config_of(GetParam()), losses});
}

// The least batch that there is: a sequence of one token.
TEST_P(FamiliesOnDevice, OneTokenTrainsLikeTheOracles) {
  Config c = config_of(GetParam());
  c.train.seq_length = c.train.micro_batch_size = 1;
  c.train.global_batch_size = 2;
  if (c.train.encoder_seq_length > 0) c.train.encoder_seq_length = 1;
  const Fp32Draws<Losses> fp32(c, losses);
  for (const bool graphs : {false, true})
    EXPECT_LT(furthest(on_device(c, graphs), fp32.first()), 1e-4) << "graphs " << graphs;
  c.precision.recipe = Recipe::kBf16;
  expect_as_near(c, fp32);
}

Config wide_llama() {
  Config c;
  sizes(c, "llama3-8b", 2);
  c.model.hidden_size = 64;
  c.model.ffn_hidden_size = 128;
  c.model.kv_channels = 16;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 4;
  c.train.train_iters = 4;
  return c;
}

// Whole blocks of 128 in every matrix.
Config block_llama() {
  Config c = wide_llama();
  c.model.hidden_size = 128;
  c.model.ffn_hidden_size = 256;
  c.model.kv_channels = 32;
  c.train.seq_length = 64;
  return c;
}

// Sides that blocks of 128 cover in part.
Config partial_block_llama() {
  Config c = wide_llama();
  c.model.hidden_size = 144;
  c.model.ffn_hidden_size = 272;
  c.model.kv_channels = 32;
  c.train.seq_length = 72;
  return c;
}

Config partial_block_deepseek() {
  Config c = config_of({"deepseek_sixteens", deepseek_sixteens});
  c.train.seq_length = 72;
  c.train.train_iters = 4;
  return c;
}

// Graphs of parts train as no graphs do, bit by bit: the same kernels on the same buffers, none chosen by time.
TEST_P(FamiliesOnDevice, GraphsOfAnyScopeChangeNothing) {
  Config c = config_of(GetParam());
  c.host.deterministic_mode = true;
  const std::vector<double> plain = on_device(c, false);
  std::vector<const char*> scopes{"attn", "mlp", "attn,mlp", "layer", "full_iteration"};
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  if (layout->model.is_moe()) scopes.push_back("attn,moe_router");
  for (const char* scope : scopes) {
    c.host.cuda_graph_scope = scope;
    EXPECT_EQ(on_device(c, true), plain) << scope;
  }
}

// Of every recipe that the device runs natively; fp32 by the test before.
TEST_P(FamiliesOnDevice, TwoRunsAreOneBitByBit) {
  Config c = config_of(GetParam());
  in_sixteens(c);
  c.host.deterministic_mode = true;
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise}) {
    c.precision.recipe = recipe;
    const std::vector<double> first = on_device(c, false);
    EXPECT_FALSE(first.empty());
    EXPECT_EQ(on_device(c, true), first) << recipe_name(c);
  }
}

// Experts' products in FP8 and in narrower blocks.
TEST_P(FamiliesOnDevice, QuantizedRecipesStayAsNearAsTheOracles) {
  Config c = config_of(GetParam());
  in_sixteens(c);
  const Fp32Draws<Losses> fp32(c, losses);
  for (const Recipe recipe : {Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise, Recipe::kNvfp4}) {
    c.precision.recipe = recipe;
    expect_as_near(c, fp32);
  }
}

TEST_P(FamiliesOnDevice, Mxfp8StaysAsNearAsTheOracles) {
  Config c = config_of(GetParam());
  in_thirty_twos(c);
  const Fp32Draws<Losses> fp32(c, losses);
  c.precision.recipe = Recipe::kMxfp8;
  expect_as_near(c, fp32);
}

Config small_mixtral() {
  Config c = config_of(family_of("mixtral"));
  in_sixteens(c);
  return c;
}

// A setting that the device must train like the oracle does.
struct Setting {
  const char* name;
  void (*set)(Config&);
  Config (*of)() = wide_llama;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

class SettingsOnDevice : public GpuTest, public testing::WithParamInterface<Setting> {};

// fp32 within 1e-4; what rounds more as near fp32 as the oracle.
TEST_P(SettingsOnDevice, TrainLikeTheOracle) {
  Config c = GetParam().of();
  const std::vector<double> exact = losses(c);
  GetParam().set(c);
  const std::vector<double> oracle = losses(c);
  const bool rounds = c.precision.recipe != Recipe::kFp32;
  const double bound = rounds ? near_fp32_bound(Fp32Draws<Losses>(GetParam().of(), losses, 6).own_distance(c)) : 1e-4;
  c.host.device = trainer::Device::kCuda;
  for (const bool graphs : {false, true}) {
    c.host.enable_cuda_graph = graphs;
    const std::vector<double> device = losses(c);
    EXPECT_LT(furthest(device, rounds ? exact : oracle), bound)
        << "graphs " << graphs << ", device " << testing::PrintToString(device) << ", oracle "
        << testing::PrintToString(oracle) << ", fp32 " << testing::PrintToString(exact);
  }
}

const Setting kSettings[] = {
    {"fp8_current", [](Config& c) { c.precision.recipe = Recipe::kFp8Current; }},
    {"fp8_current_fused",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.fusion.residual_fusion = c.fusion.cross_entropy_loss_fusion = true;
     }},
    {"fp8_delayed", [](Config& c) { c.precision.recipe = Recipe::kFp8Delayed; }},
    {"fp8_param",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.precision.fp8_param = true;
     }},
    {"fused", [](Config& c) { c.fusion.residual_fusion = c.fusion.cross_entropy_loss_fusion = true; }},
    {"swiglu_fused", [](Config& c) { c.fusion.swiglu_fusion = true; }},
    {"swiglu_fused_bf16",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.fusion.swiglu_fusion = c.fusion.residual_fusion = c.fusion.cross_entropy_loss_fusion = true;
     }},
    {"unfused_attention", [](Config& c) { c.fusion.attention_backend = AttentionBackend::kUnfused; }},
    {"unfused_softmax",
     [](Config& c) {
       c.fusion.attention_backend = AttentionBackend::kUnfused;
       c.fusion.masked_softmax_fusion = false;
     }},
    {"flash_bf16",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.fusion.attention_backend = AttentionBackend::kFlash;
     }},
    {"remainder_bf16_moments",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kBf16;
     }},
    {"bf16_states",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.main_params_dtype = StateType::kBf16;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kBf16;
     }},
    {"fp16_states",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.main_params_dtype = StateType::kFp16;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kFp16;
     }},
    {"fp8_moments",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kFp8;
     }},
    {"moments_of_two_types",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_sq_dtype = StateType::kBf16;
     }},
    {"bf16_gradients",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.data_parallel.grad_reduce_in_fp32 = false;
     }},
    {"fp8_bf16_gradients",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.data_parallel.grad_reduce_in_fp32 = false;
     }},
    {"optimizer_beside",
     [](Config& c) {
       c.parallel.use_distributed_optimizer = false;
       c.data_parallel.overlap_optimizer_with_forward = true;
       c.data_parallel.bucket_size = 20000;
     }},
    {"optimizer_beside_confined",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.parallel.use_distributed_optimizer = false;
       c.data_parallel.overlap_optimizer_with_forward = true;
       c.data_parallel.bucket_size = 20000;
       c.host.side_sms = 16;
     }},
    {"fp8_blockwise", [](Config& c) { c.precision.recipe = Recipe::kFp8Blockwise; }, block_llama},
    {"fp8_blockwise_any_scale",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Blockwise;
       c.precision.fp8_power_of_two_scales = false;
     },
     block_llama},
    {"fp8_blockwise_partial", [](Config& c) { c.precision.recipe = Recipe::kFp8Blockwise; }, partial_block_llama},
    {"fp8_blockwise_partial_deepseek", [](Config& c) { c.precision.recipe = Recipe::kFp8Blockwise; },
     partial_block_deepseek},
    {"mxfp8", [](Config& c) { c.precision.recipe = Recipe::kMxfp8; }, block_llama},
    {"nvfp4", [](Config& c) { c.precision.recipe = Recipe::kNvfp4; }, block_llama},
    {"weight_gradients_added", [](Config& c) { c.fusion.gradient_accumulation_fusion = false; }},
    {"weight_gradients_added_bf16",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.fusion.gradient_accumulation_fusion = false;
     }},
    {"weight_gradients_added_fp8",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.fusion.gradient_accumulation_fusion = false;
     }},
    {"experts_apart", [](Config& c) { c.parallel.moe_grouped_gemm = false; }, small_mixtral},
    {"experts_apart_bf16",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.parallel.moe_grouped_gemm = false;
     },
     small_mixtral},
    {"slabs", [](Config& c) { c.memory.expandable_segments = false; }},
    {"offload",
     [](Config& c) {
       c.memory.cpu_offloading = true;
       c.memory.cpu_offloading_num_layers = 1;
     }},
    {"offload_weights",
     [](Config& c) {
       c.memory.cpu_offloading = c.memory.cpu_offloading_weights = true;
       c.memory.cpu_offloading_num_layers = 1;
     }},
    {"recompute", [](Config& c) { c.memory.recompute_granularity = RecomputeGranularity::kFull; }},
};

INSTANTIATE_TEST_SUITE_P(All, FamiliesOnDevice, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(All, SettingsOnDevice, testing::ValuesIn(kSettings),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer::cuda
