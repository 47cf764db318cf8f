// The table of sizes, lookups, overrides and the rules of a shape.
#include "trainer/models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace mbb::trainer {
namespace {

ModelShape found(std::string_view name) {
  return find_model(name).value();
}

Result<ModelShape> overridden(const std::string& model, std::vector<ShapeOverride> overrides) {
  return with_overrides(found(model), overrides);
}

TEST(Models, EveryRowIsValidAndNamesAreUnique) {
  std::set<std::string> names;
  std::set<Family> families;
  for (const ModelShape& shape : all_models()) {
    const Status status = validate(shape);
    EXPECT_TRUE(status.has_value()) << status.error().what;
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    families.insert(shape.family);
    EXPECT_EQ(found(shape.name), shape);
  }
  EXPECT_EQ(families.size(), 10u);
}

TEST(Models, NamesAreFoundInOtherSpellings) {
  EXPECT_EQ(found("LLAMA3_8B").name, "llama3-8b");
  EXPECT_EQ(found("Qwen2_5-7B").name, "qwen2.5-7b");
  EXPECT_EQ(found("llama3.1_405b").name, "llama3.1-405b");
  EXPECT_EQ(found("llama3-405b").name, "llama3.1-405b");
}

TEST(Models, AnUnknownNameSuggestsTheNearest) {
  const auto result = find_model("lama3-8b");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(result.error().what, "no model is named \"lama3-8b\"");
  EXPECT_EQ(result.error().hint.rfind("nearest: llama3-8b,", 0), 0u) << result.error().hint;
  EXPECT_FALSE(find_model("").has_value());
}

TEST(Models, TheQuickstartModelDividesByTwo) {
  const ModelShape shape = found("quickstart-llama");
  EXPECT_EQ(shape.num_layers % 2, 0);
  EXPECT_EQ(shape.num_query_groups % 2, 0);
  EXPECT_EQ(shape.ffn_hidden_size % 2, 0);
  EXPECT_EQ(shape.vocab_size, 256);
  EXPECT_FALSE(shape.tied_embeddings);
}

TEST(Overrides, WidthOfAHeadFollowsHiddenAndHeadsWhereItDidBefore) {
  const ModelShape narrow = overridden("llama3-8b", {{"hidden_size", 256}, {"num_attention_heads", 8}}).value();
  EXPECT_EQ(narrow.head_dim, 32);
  EXPECT_EQ(narrow.num_query_groups, 8);
  EXPECT_EQ(narrow.ffn_hidden_size, 14336);
  // Qwen3 32B's heads are wider than hidden / heads: they stay.
  EXPECT_EQ(overridden("qwen3-32b", {{"hidden_size", 512}}).value().head_dim, 128);
  // Without grouped queries the groups follow the heads.
  EXPECT_EQ(overridden("gpt3-126m", {{"num_attention_heads", 6}}).value().num_query_groups, 6);
}

TEST(Overrides, ASmallDeepSeekKeepsItsArchitecture) {
  const ModelShape shape = overridden("deepseek-v3", {{"num_layers", 2},
                                                      {"hidden_size", 64},
                                                      {"ffn_hidden_size", 128},
                                                      {"num_attention_heads", 4},
                                                      {"q_lora_rank", 24},
                                                      {"kv_lora_rank", 16},
                                                      {"qk_head_dim", 16},
                                                      {"qk_pos_emb_head_dim", 8},
                                                      {"v_head_dim", 16},
                                                      {"num_experts", 16},
                                                      {"moe_router_topk", 4},
                                                      {"moe_ffn_hidden_size", 32},
                                                      {"moe_shared_expert_intermediate_size", 32},
                                                      {"moe_first_dense_layers", 1},
                                                      {"mtp_num_layers", 1},
                                                      {"vocab_size", 256}})
                               .value();
  EXPECT_EQ(shape.head_dim, 24);
  EXPECT_EQ(shape.num_query_groups, 4);
  EXPECT_EQ(shape.num_mtp_layers, 1);
  EXPECT_FALSE(shape.is_moe_layer(0));
  EXPECT_TRUE(shape.is_moe_layer(1));
}

struct BadOverride {
  const char* model;
  std::vector<ShapeOverride> overrides;
  const char* says;
};

TEST(Overrides, WhatBreaksARuleIsRefusedByName) {
  const BadOverride cases[] = {
      {"llama3-8b", {{"num_layer", 4}}, "\"num_layer\" is no field"},
      {"llama3-8b", {{"num_experts", 4}}, "model llama3-8b has no num_experts"},
      {"llama3-8b", {{"q_lora_rank", 4}}, "model llama3-8b has no q_lora_rank"},
      {"llama3-8b", {{"encoder_num_layers", 4}}, "has no encoder_num_layers"},
      {"t5-3b", {{"mtp_num_layers", 1}}, "has no mtp_num_layers"},
      {"deepseek-v3", {{"kv_channels", 64}}, "has no kv_channels"},
      {"deepseek-v3", {{"kv_lora_rank", 0}}, "kv_lora_rank"},
      {"llama3-8b", {{"num_layers", 0}}, "num_layers is 0"},
      {"llama3-8b", {{"num_layers", -3}}, "num_layers is -3"},
      {"llama3-8b", {{"num_layers", 1 << 24}}, "num_layers is 16777216, not within 1..8192"},
      {"t5-3b", {{"encoder_num_layers", 1 << 24}}, "encoder_num_layers is 16777216"},
      {"llama3-8b", {{"num_attention_heads", 0}}, "num_attention_heads is 0"},
      {"llama3-8b", {{"num_query_groups", 0}}, "num_query_groups is 0"},
      {"llama3-8b", {{"num_query_groups", 5}}, "no multiple of num_query_groups 5"},
      {"llama3-8b", {{"hidden_size", 100}}, "no multiple of num_attention_heads"},
      {"llama3-8b", {{"kv_channels", 3}}, "RoPE turns 3 of 3"},
      {"nemotron4-15b", {{"kv_channels", 2}}, "RoPE turns 1 of 2"},
      {"llama3-8b", {{"vocab_size", std::int64_t{1} << 40}}, "vocab_size is"},
      {"mixtral-8x7b", {{"moe_router_topk", 9}}, "moe_router_topk is 9"},
      {"mixtral-8x7b", {{"num_experts", 0}}, "num_experts is 0"},
      {"deepseek-v3", {{"num_layers", 2}}, "moe_first_dense_layers is 3"},
      {"deepseek-v3", {{"num_experts", 12}}, "no multiple of moe_router_num_groups 8"},
      {"deepseek-v3", {{"num_experts", 8}}, "a router group needs two experts"},
      {"deepseek-v3", {{"moe_router_group_topk", 9}}, "moe_router_group_topk is 9"},
      {"deepseek-v3", {{"num_experts", 16}, {"moe_router_group_topk", 1}}, "more than the 2 experts"},
      {"gpt-oss-20b", {{"window_size", -1}}, "window_size"},
      {"mixtral-8x7b", {{"moe_ffn_hidden_size", std::int64_t{1} << 40}}, "moe_ffn_hidden_size is"},
      {"llama3-8b",
       {{"hidden_size", 1 << 24}, {"ffn_hidden_size", 1 << 24}, {"num_layers", 8192}},
       "which cannot be right"},
  };
  for (const BadOverride& c : cases) {
    const auto result = overridden(c.model, c.overrides);
    ASSERT_FALSE(result.has_value()) << c.model << ": " << c.says;
    EXPECT_NE(result.error().what.find(c.says), std::string::npos) << result.error().what;
  }
}

TEST(Overrides, EveryKeyIsTakenBySomeModel) {
  for (const std::string_view key : override_keys()) {
    bool taken = false;
    for (const ModelShape& shape : all_models()) {
      const auto result = with_overrides(shape, std::vector<ShapeOverride>{{std::string(key), 8}});
      taken = taken || (result.has_value() && *result != shape);
    }
    EXPECT_TRUE(taken) << key;
  }
}

TEST(Layers, SlidingAndMoePatternsFollowTheLayer) {
  const ModelShape oss = found("gpt-oss-20b");
  EXPECT_TRUE(oss.is_sliding_layer(0));
  EXPECT_FALSE(oss.is_sliding_layer(1));
  EXPECT_TRUE(oss.is_sliding_layer(22));
  EXPECT_FALSE(found("llama3-8b").is_sliding_layer(0));
  EXPECT_FALSE(found("deepseek-v3").is_moe_layer(2));
  EXPECT_TRUE(found("deepseek-v3").is_moe_layer(3));
}

TEST(Rope, PlainFrequenciesArePowersOfTheBase) {
  const ModelShape shape = found("llama3-8b");
  const std::vector<double> angles = rope_inverse_frequencies(shape);
  ASSERT_EQ(angles.size(), 64u);
  for (std::size_t i = 0; i < angles.size(); ++i)
    EXPECT_NEAR(angles[i], std::pow(500000.0, -static_cast<double>(i) / 64.0), 1e-15);
  EXPECT_EQ(rope_attention_factor(shape), 1.0);
  EXPECT_DOUBLE_EQ(shape.softmax_scale(), 1.0 / std::sqrt(128.0));
}

TEST(Rope, Llama31KeepsFastWavesAndStretchesSlowOnes) {
  const std::vector<double> plain = rope_inverse_frequencies(found("llama3-8b"));
  const std::vector<double> scaled = rope_inverse_frequencies(found("llama3.1-8b"));
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_NEAR(scaled.back(), plain.back() / 8, 1e-18);
  for (std::size_t i = 1; i < scaled.size(); ++i) {
    EXPECT_LT(scaled[i], scaled[i - 1]);
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i], plain[i] / 8 * (1 - 1e-12));
  }
}

TEST(Rope, YarnBlendsBetweenItsTwoTurnCounts) {
  const ModelShape oss = found("gpt-oss-20b");
  const std::vector<double> angles = rope_inverse_frequencies(oss);
  ASSERT_EQ(angles.size(), 32u);
  for (std::size_t i = 0; i < angles.size(); ++i) {
    const double plain = std::pow(150000.0, -static_cast<double>(i) / 32.0);
    const double turns = 4096 * plain / (2 * M_PI);
    if (turns >= 32) {
      EXPECT_NEAR(angles[i], plain, 1e-12) << i;
    } else if (turns <= 1) {
      EXPECT_NEAR(angles[i], plain / 32, 1e-12) << i;
    } else {
      EXPECT_LT(angles[i], plain);
      EXPECT_GT(angles[i], plain / 32);
    }
  }
  EXPECT_NEAR(rope_attention_factor(oss), 0.1 * std::log(32.0) + 1, 1e-15);
}

TEST(Rope, DeepSeekMovesTheYarnFactorIntoTheSoftmaxScale) {
  const ModelShape shape = found("deepseek-v3");
  EXPECT_EQ(shape.rotary_dim(), 64);
  EXPECT_DOUBLE_EQ(rope_attention_factor(shape), 1.0);
  const double m = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(shape.softmax_scale(), m * m / std::sqrt(192.0), 1e-15);
  EXPECT_EQ(found("t5-3b").softmax_scale(), 1.0);
  EXPECT_EQ(found("nemotron4-15b").rotary_dim(), 64);
  EXPECT_EQ(found("gpt3-126m").rotary_dim(), 0);
}

}  // namespace
}  // namespace mbb::trainer
