// config.json of every known architecture, against the table; and bad ones.
#include "trainer/models/hf_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "trainer/data/rng.h"
#include "trainer/models/flops.h"

namespace mbb::trainer {
namespace {

// The keys of published configurations that a shape depends on, with the spelling of their files, and some of the rest.
struct Published {
  const char* model;
  const char* text;
};
const Published kPublished[] = {
    {"gpt2-1.5b", R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600,
        "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257})"},
    {"llama2-7b", R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false, "vocab_size": 32000})"},
    {"llama3-8b", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false,
        "vocab_size": 128256})"},
    {"llama3.1-8b", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})"},
    {"nemotron4-15b", R"({"architectures": ["NemotronForCausalLM"], "attention_bias": false, "hidden_act": "relu2",
        "hidden_size": 6144, "initializer_range": 0.0134, "intermediate_size": 24576, "max_position_embeddings": 4096,
        "mlp_bias": false, "model_type": "nemotron", "norm_eps": 1e-05, "num_attention_heads": 48,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "vocab_size": 256000})"},
    {"qwen2.5-7b", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064})"},
    {"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
        "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
        "vocab_size": 151936})"},
    {"mixtral-8x7b", R"({"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
        "vocab_size": 32000})"},
    {"qwen3-30b-a3b", R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"gpt-oss-20b", R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "experts_per_token": 4,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
        "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "vocab_size": 201088})"},
    {"deepseek-v3", R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "ep_size": 1,
        "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
        "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})"},
    {"t5-11b", R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 10240, "d_kv": 64, "d_model": 4096,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5",
        "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24, "relative_attention_num_buckets": 32,
        "tie_word_embeddings": false, "vocab_size": 32128})"},
};

ModelShape parsed(const Published& published) {
  const auto result = parse_hf_config(published.text, "config.json", published.model);
  EXPECT_TRUE(result.has_value()) << published.model << ": " << (result ? "" : result.error().what);
  return result.value_or(ModelShape{});
}

TEST(HfConfig, PublishedConfigurationsAreTheRowsOfTheTable) {
  for (const Published& published : kPublished) {
    ModelShape read = parsed(published);
    ModelShape row = find_model(published.model).value();
    // The files say nothing of how those models were trained; these are the only fields in which a row may differ.
    if (row.family == Family::kDeepSeekV3) {
      EXPECT_EQ(read.num_mtp_layers, 1);
      read.num_mtp_layers = 0;
      read.init_std = row.init_std;
    }
    if (row.is_moe()) {
      read.moe.aux_loss = row.moe.aux_loss;
      read.moe.aux_loss_coefficient = row.moe.aux_loss_coefficient;
    }
    // A list of layer kinds equals the pattern it repeats.
    for (std::int64_t layer = 0; layer < row.num_layers; ++layer)
      EXPECT_EQ(read.is_sliding_layer(layer), row.is_sliding_layer(layer)) << published.model;
    read.sliding_pattern = row.sliding_pattern;
    EXPECT_EQ(read, row) << published.model;
  }
}

// What a file says, in place of one key's text.
std::string with(const char* model, const std::string& from, const std::string& to) {
  for (const Published& published : kPublished) {
    if (std::string_view(published.model) != model) continue;
    std::string text = published.text;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  ADD_FAILURE() << model;
  return "";
}

TEST(HfConfig, AuxiliaryLossesComeFromTheFile) {
  const auto oss = parse_hf_config(with("gpt-oss-20b", "0.9", "0.5"), "f", "m");
  EXPECT_EQ(oss->moe.aux_loss_coefficient, 0.5);
  EXPECT_EQ(oss->moe.aux_loss, AuxLoss::kBatch);
  const auto deepseek =
      parse_hf_config(with("deepseek-v3", "\"n_group\": 8", "\"n_group\": 8, \"aux_loss_alpha\": 0.001"), "f", "m");
  EXPECT_EQ(deepseek->moe.aux_loss, AuxLoss::kSequence);
  EXPECT_EQ(deepseek->moe.aux_loss_coefficient, 0.001);
}

TEST(HfConfig, NewerRotarySpellingReadsTheSame) {
  const auto result =
      parse_hf_config(with("llama3.1-8b", "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0, "),
                      "f", "llama3.1-8b");
  ASSERT_TRUE(result.has_value()) << result.error().what;
  EXPECT_EQ(*result, find_model("llama3.1-8b").value());
}

TEST(HfConfig, TiedT5ScalesItsLogits) {
  const auto result =
      parse_hf_config(with("t5-11b", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"), "f", "m");
  EXPECT_EQ(result->logit_scale, 1.0 / 64);
}

TEST(HfConfig, SlidingLayersOfTheOlderSpelling) {
  const auto result = parse_hf_config(
      R"({"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
          "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
          "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 3})",
      "f", "m");
  ASSERT_TRUE(result.has_value()) << result.error().what;
  EXPECT_FALSE(result->is_sliding_layer(2));
  EXPECT_TRUE(result->is_sliding_layer(3));
}

struct BadConfig {
  std::string text;
  const char* says;
};

TEST(HfConfig, WhatIsMissingOrUnknownIsNamedWithItsFile) {
  const BadConfig cases[] = {
      {"", "x/config.json is no JSON"},
      {"[1]", "x/config.json is no JSON object"},
      {"{}", "x/config.json: key \"architectures\" is missing"},
      {R"({"architectures": ["MambaForCausalLM"]})", "key \"architectures\" is \"MambaForCausalLM\""},
      {R"({"architectures": ["LlamaForCausalLM"], "model_type": "qwen2"})",
       "key \"model_type\" is \"qwen2\", and key \"architectures\" is \"LlamaForCausalLM\", whose type is \"llama\""},
      {R"({"architectures": ["LlamaForCausalLM"], "model_type": 7})", "key \"model_type\" is 7, and key"},
      {R"({"model_type": "gemma3"})", "key \"model_type\" is \"gemma3\""},
      {with("llama3-8b", "\"hidden_size\": 4096,", ""), "x/config.json: key \"hidden_size\" is missing"},
      {with("llama3-8b", "\"rms_norm_eps\": 1e-05,", ""), "key \"rms_norm_eps\" is missing"},
      {with("qwen3-8b", "\"head_dim\": 128,", ""), "key \"head_dim\" is missing"},
      {with("deepseek-v3", "\"kv_lora_rank\": 512,", ""), "key \"kv_lora_rank\" is missing"},
      {with("mixtral-8x7b", "\"num_local_experts\": 8,", ""), "key \"num_local_experts\" is missing"},
      {with("gpt2-1.5b", "\"n_layer\": 48,", ""), "key \"n_layer\" is missing"},
      {with("t5-11b", "\"d_kv\": 64,", ""), "key \"d_kv\" is missing"},
      {with("llama3-8b", "4096", "\"4096\""), "key \"hidden_size\" is \"4096\", not a whole number"},
      {with("llama3-8b", "4096", "4096.5"), "key \"hidden_size\" is 4096.5, not a whole number"},
      {with("llama3-8b", "4096", "99999999999999999999"), "key \"hidden_size\" is"},
      {with("llama3-8b", "4096", "18446744073709551615"), "key \"hidden_size\" is larger than any size"},
      {with("llama3-8b", "\"num_attention_heads\": 32", "\"num_attention_heads\": 31"), "no multiple of"},
      {with("llama3-8b", "\"num_attention_heads\": 32", "\"num_attention_heads\": 0"), "no multiple of"},
      {with("llama3-8b", "\"silu\"", "\"gelu\""), "key \"hidden_act\" is \"gelu\"; only silu is built here"},
      {with("llama3.1-8b", "\"llama3\"", "\"linear\""),
       "key \"rope_type\" is \"linear\"; only default, llama3 or yarn"},
      {with("llama3.1-8b", "\"factor\": 8.0,", ""), "key \"factor\" is missing"},
      {with("llama3.1-8b", "{\"factor\"", "[], \"a\": {\"factor\""), "key \"rope_scaling\" is [], not an object"},
      {with("deepseek-v3", "\"sigmoid\"", "\"softmax\""), "key \"scoring_func\" is \"softmax\""},
      {with("deepseek-v3", "\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 800"),
       "reading x/config.json: model m"},
      {with("qwen3-30b-a3b", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2"),
       "key \"decoder_sparse_step\" is 2"},
      {with("qwen3-30b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [3]"), "key \"mlp_only_layers\" is [3]"},
      {with("gpt-oss-20b", "\"sliding_attention\", \"full_attention\",", "\"full_attention\","),
       "key \"layer_types\" has 23 entries for 24 layers"},
      {with("gpt-oss-20b", "\"sliding_attention\"", "\"chunked_attention\""), "key \"layer_types\""},
      {with("t5-11b", "gated-gelu", "gated-silu"), "key \"feed_forward_proj\""},
      {with("gpt2-1.5b", "gelu_new", "tanh"), "key \"activation_function\""},
      {with("llama3-8b", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0"), "not true or false"},
      {with("llama3-8b", "\"vocab_size\": 128256", "\"vocab_size\": -1"), "vocab_size is -1"},
  };
  for (const BadConfig& c : cases) {
    const auto result = parse_hf_config(c.text, "x/config.json", "m");
    ASSERT_FALSE(result.has_value()) << c.says;
    EXPECT_NE(result.error().what.find(c.says), std::string::npos) << result.error().what << "\nexpected: " << c.says;
    EXPECT_NE(result.error().what.find("x/config.json"), std::string::npos);
  }
}

TEST(HfConfig, FuzzedConfigurationsAreReadOrRefused) {
  const RandomStream stream(1, "fuzz.config", 0);
  int read = 0;
  for (std::uint64_t round = 0; round < 6000; ++round) {
    std::string text = kPublished[round % std::size(kPublished)].text;
    for (std::uint64_t e = 0; e <= stream.below(3, round, 0); ++e) {
      const auto at = static_cast<std::size_t>(stream.below(text.size(), round, 8 * e + 1));
      const auto digit = static_cast<char>('0' + stream.below(10, round, 8 * e + 2));
      switch (stream.below(4, round, 8 * e + 3)) {
        case 0: text[at] = static_cast<char>(stream.bits(round, 64 + e)); break;
        case 1: text.insert(at, 1, digit); break;
        case 2: text.erase(at, 1 + at % 7); break;
        default: text.insert(at, "-");
      }
    }
    const auto result = parse_hf_config(text, "f", "m");
    if (!result.has_value()) continue;
    ++read;
    EXPECT_TRUE(validate(*result).has_value());
    EXPECT_GT(count_parameters(*result).total(), 0);
  }
  EXPECT_GT(read, 300);
}

TEST(HfConfig, FilesAndFolders) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("mbb_hf_" + std::to_string(::getpid())) / "my-llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << kPublished[2].text;
  for (const std::string& path : {folder.string(), (folder / "config.json").string()}) {
    const auto result = resolve_model(path);
    ASSERT_TRUE(result.has_value()) << result.error().what;
    EXPECT_EQ(result->name, "my-llama");
    EXPECT_EQ(result->hidden_size, 4096);
  }
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  EXPECT_EQ(resolve_model("./config.json")->name, "my-llama");
  std::filesystem::current_path(before);
  std::ofstream(folder / "bad.json") << std::regex_replace(
      std::string(kPublished[2].text), std::regex("\"num_hidden_layers\": *[0-9]+"), "\"num_hidden_layers\": 0");
  EXPECT_EQ(resolve_model((folder / "bad.json").string()).error().code, ErrorCode::kBadFile);
  EXPECT_EQ(resolve_model("llama3-8b")->name, "llama3-8b");
  EXPECT_EQ(resolve_model("no/such/config.json").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(resolve_model("nothing.json").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(resolve_model("nothing").error().code, ErrorCode::kNotFound);
  std::filesystem::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace mbb::trainer
