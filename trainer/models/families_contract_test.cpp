// Every family as a small model: parameters and FLOPs equal the closed formulas, every mapping trains like one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "trainer/data/rng.h"
#include "trainer/models/flops.h"
#include "trainer/program/explain.h"
#include "trainer/program/verify.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

struct Small {
  const char* name;
  void (*shape)(Config&);
  bool stages = true;  // whether the model can be cut into pipeline stages
};

void PrintTo(const Small& small, std::ostream* out) {
  *out << small.name;
}

void sizes(Config& c, const char* model, int64_t kv_heads) {
  c.model.name = model;
  c.model.num_layers = 2;
  c.model.hidden_size = 32;
  c.model.ffn_hidden_size = 48;
  c.model.num_attention_heads = 4;
  c.model.num_query_groups = kv_heads;
  c.model.vocab_size = 64;
}

void experts(Config& c, int64_t count, int64_t top_k) {
  c.model.num_experts = count;
  c.model.moe_router_topk = top_k;
  c.model.moe_ffn_hidden_size = 24;
}

void deepseek(Config& c) {
  sizes(c, "deepseek-v3", 0);
  experts(c, 8, 3);
  c.model.moe_shared_expert_intermediate_size = 24;
  c.model.moe_router_num_groups = 4;
  c.model.moe_router_group_topk = 2;
  c.model.moe_first_dense_layers = 1;
  c.model.q_lora_rank = 12;
  c.model.kv_lora_rank = 8;
  c.model.qk_head_dim = 8;
  c.model.qk_pos_emb_head_dim = 4;
  c.model.v_head_dim = 6;
}

Config config_of(const Small& small) {
  Config c;
  c.train.seq_length = 16;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 4;
  c.train.train_iters = 3;
  c.optimizer.lr_warmup_iters = 1;
  small.shape(c);
  return c;
}

const Small kFamilies[] = {
    {"gpt", [](Config& c) { sizes(c, "gpt3-126m", 0); }, false},
    {"gpt_untied", [](Config& c) { sizes(c, "gpt-462b", 0); }},
    {"llama31",
     [](Config& c) {
       sizes(c, "llama3.1-8b", 2);
       c.model.kv_channels = 8;
     }},
    {"nemotron",
     [](Config& c) {
       sizes(c, "nemotron4-15b", 2);
       c.model.kv_channels = 8;
     }},
    {"qwen25", [](Config& c) { sizes(c, "qwen2.5-7b", 2); }},
    {"qwen25_tied", [](Config& c) { sizes(c, "qwen2.5-0.5b", 2); }, false},
    {"qwen3",
     [](Config& c) {
       sizes(c, "qwen3-8b", 2);
       c.model.kv_channels = 16;
     }},
    {"mixtral",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
     }},
    {"mixtral_capacity",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
       c.parallel.moe_expert_capacity_factor = 0.75;
       c.model.moe_z_loss_coeff = 0.01;
     }},
    {"mixtral_balanced",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
       c.parallel.moe_router_force_load_balancing = true;
     }},
    {"qwen3_moe",
     [](Config& c) {
       sizes(c, "qwen3-30b-a3b", 2);
       experts(c, 6, 3);
       c.model.kv_channels = 16;
     }},
    {"gpt_oss",
     [](Config& c) {
       sizes(c, "gpt-oss-20b", 2);
       experts(c, 4, 2);
       c.model.kv_channels = 8;
       c.model.window_size = 5;
     }},
    {"deepseek_v3", deepseek},
    {"deepseek_v3_mtp",
     [](Config& c) {
       deepseek(c);
       c.model.mtp_num_layers = 2;
     },
     false},
    {"t5",
     [](Config& c) {
       sizes(c, "t5-220m", 0);
       c.model.kv_channels = 8;
       c.model.encoder_num_layers = 2;
       c.train.encoder_seq_length = 12;
       c.train.hidden_dropout = 0.1;
     },
     false},
    {"gpt_dropout",
     [](Config& c) {
       sizes(c, "gpt-462b", 0);
       c.train.hidden_dropout = 0.1;
       c.train.attention_dropout = 0.1;
     }},
};

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
