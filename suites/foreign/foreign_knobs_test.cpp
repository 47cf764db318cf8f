// Configurations of other trainers: what is read, what becomes a knob, and that nothing passes in silence.
#include "suites/foreign/foreign_knobs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "suites/foreign/foreign_config.h"

namespace mbb::suites {
namespace {

constexpr const char* kRunConfig = R"(_target_: megatron.bridge.training.config.ConfigContainer
checkpoint:
  _target_: megatron.bridge.training.config.CheckpointConfig
  save_interval: 500
comm_overlap: null
dataset:
  sequence_length: 8192
  split_matrix:
  - - 0
    - 0.5
  - - 0.5
    - 1.0
ddp:
  bucket_size: 40000000
  data_parallel_sharding_strategy: no_shard
  grad_reduce_in_fp32: false
  overlap_grad_reduce: true
mixed_precision:
  bf16: true
  fp8: e4m3
  fp8_recipe: tensorwise   # per tensor
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  attention_backend:
    _args_:
    - 5
    _call_: true
    _target_: megatron.core.transformer.enums.AttnBackend
  bf16: true
  context_parallel_size: 2
  ffn_hidden_size: 14336
  fp8: e4m3
  fp8_recipe: tensorwise
  hidden_size: 4096
  num_attention_heads: 32
  num_layers: 8
  num_query_groups: 8
  recompute_modules:
  - core_attn
  - mlp
  seq_length: 131072
  tensor_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  zero_frobnication: 7
optimizer:
  exp_avg_dtype:
    _call_: false
    _target_: torch.float32
  lr: 0.0003
train:
  global_batch_size: 128
  micro_batch_size: 1
)";

std::string value(const ImportedKnobs& imported, const std::string& key) {
  for (const ImportedKnob& knob : imported.knobs)
    if (knob.key == key) return knob.value;
  return "(none)";
}

bool listed(const ImportedKnobs& imported, const std::string& key) {
  return std::any_of(imported.not_understood.begin(), imported.not_understood.end(),
                     [&](const ForeignSetting& one) { return one.key == key; });
}

TEST(ForeignConfig, YamlIsFlatWithObjectsFolded) {
  const auto settings = read_yaml(kRunConfig);
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_EQ(setting(*settings, "dataset.sequence_length"), "8192");
  EXPECT_EQ(setting(*settings, "model.attention_backend"), "megatron.core.transformer.enums.AttnBackend(5)");
  EXPECT_EQ(setting(*settings, "model.recompute_modules"), "[core_attn, mlp]");
  EXPECT_EQ(setting(*settings, "mixed_precision.fp8_recipe"), "tensorwise");
  EXPECT_EQ(setting(*settings, "dataset.split_matrix.1"), "[0.5, 1.0]");
  EXPECT_FALSE(setting(*settings, "model._target_"));
  const auto line =
      std::find_if(settings->begin(), settings->end(), [](const auto& s) { return s.key == "optimizer.lr"; });
  EXPECT_EQ(line->line, 52);
}

TEST(ForeignConfig, ScalarsOfEveryForm) {
  const auto settings = read_yaml(
      "a: 'it''s'\n"
      "\"b c\": \"x: y\"  # note\n"
      "long: first\n"
      "  second\n"
      "anchored: &id001\n"
      "  inner: 1\n"
      "empty:\n"
      "list:\n"
      "- name: one\n"
      "  size: 1\n"
      "- name: two\n");
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_EQ(setting(*settings, "a"), "it's");
  EXPECT_EQ(setting(*settings, "b c"), "x: y");
  EXPECT_EQ(setting(*settings, "long"), "first second");
  EXPECT_EQ(setting(*settings, "anchored.inner"), "1");
  EXPECT_EQ(setting(*settings, "empty"), "");
  EXPECT_EQ(setting(*settings, "list.0.size"), "1");
  EXPECT_EQ(setting(*settings, "list.1.name"), "two");
}

TEST(ForeignConfig, WhatIsNoYamlIsAnErrorWithItsLine) {
  const auto broken = read_yaml("a: 1\nno key here\n");
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().what.find("line 2"), std::string::npos) << broken.error().what;
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += std::string(static_cast<size_t>(i), ' ') + "k:\n";
  EXPECT_FALSE(read_yaml(deep));
  std::string dashes;
  for (int i = 0; i < 200; ++i) dashes += "- ";
  EXPECT_FALSE(read_yaml(dashes + "x"));
  EXPECT_EQ(config_kind("one two\nthree\n"), ConfigKind::kNone);
  EXPECT_EQ(config_kind(kRunConfig), ConfigKind::kYaml);
}

TEST(ForeignKnobs, BridgesConfigurationBecomesKnobsAndTheRestIsListed) {
  const auto settings = read_yaml(kRunConfig);
  ASSERT_TRUE(settings);
  const ImportedKnobs imported = import_knobs(*settings);
  EXPECT_EQ(value(imported, "model.name"), "llama3-8b");
  EXPECT_EQ(value(imported, "model.num_layers"), "8") << "a proxy of it";
  EXPECT_EQ(value(imported, "precision.recipe"), "fp8_current");
  EXPECT_EQ(value(imported, "train.seq_length"), "8192") << "the data's, not the longest the model takes";
  EXPECT_EQ(value(imported, "train.global_batch_size"), "128");
  EXPECT_EQ(value(imported, "parallel.tensor_model_parallel_size"), "2");
  EXPECT_EQ(value(imported, "parallel.context_parallel_size"), "2");
  EXPECT_EQ(value(imported, "data_parallel.grad_reduce_in_fp32"), "false");
  EXPECT_EQ(value(imported, "optimizer.exp_avg_dtype"), "fp32");
  EXPECT_EQ(value(imported, "fusion.attention_backend"), "auto");
  EXPECT_EQ(value(imported, "memory.recompute_modules"), "core_attn,mlp");
  EXPECT_TRUE(imported.refused.empty()) << imported.refused[0].from.key << " " << imported.refused[0].reason;
  EXPECT_TRUE(listed(imported, "model.zero_frobnication"));
  EXPECT_TRUE(listed(imported, "checkpoint.save_interval"));
  EXPECT_TRUE(listed(imported, "comm_overlap"));
  for (const ImportedKnob& knob : imported.knobs) EXPECT_FALSE(listed(imported, knob.from.key)) << knob.key;
  trainer::Config config;
  KnobSources sources;
  ASSERT_TRUE(apply_imported(imported, "run_config.yaml", config, sources));
  EXPECT_EQ(config.train.seq_length, 8192);
  EXPECT_EQ(sources.at("train.seq_length").place, "run_config.yaml");
  EXPECT_EQ(sources.at("train.seq_length").line, 7);
  EXPECT_NE(imported_toml(imported, "x").find("parallel.tensor_model_parallel_size = 2\n"), std::string::npos);
}

TEST(ForeignKnobs, MegatronsArgumentDump) {
  const auto settings = read_argument_dump(
      "noise\n------------------------ arguments ------------------------\n"
      "  bf16 ............................................ True\n"
      "  fp8 ............................................. None\n"
      "  frob ............................................ 3\n"
      "  global_batch_size ............................... 8\n"
      "  lr .............................................. 0.0003\n"
      "  seq_length ...................................... 2048\n"
      "  tensor_model_parallel_size ...................... minus two\n"
      "  world_size ...................................... 8\n"
      "-------------------- end of arguments ---------------------\n  later ... 1\n");
  EXPECT_EQ(settings.size(), 8U);
  const ImportedKnobs imported = import_knobs(settings);
  EXPECT_EQ(value(imported, "precision.recipe"), "bf16");
  EXPECT_EQ(value(imported, "train.seq_length"), "2048");
  EXPECT_EQ(value(imported, "parallel.gpus"), "8");
  EXPECT_TRUE(listed(imported, "frob"));
  ASSERT_EQ(imported.refused.size(), 1U);
  EXPECT_EQ(imported.refused[0].from.key, "tensor_model_parallel_size");
}

ImportedKnobs of_yaml(const std::string& text) {
  const auto settings = read_yaml(text);
  EXPECT_TRUE(settings);
  return import_knobs(*settings);
}

TEST(ForeignKnobs, ModelsOfOneShapeAreToldApartByTheirVocabulary) {
  const std::string shape =
      "model:\n  num_layers: 80\n  hidden_size: 8192\n  ffn_hidden_size: 28672\n  num_attention_heads: 64\n"
      "  num_query_groups: 8\n";
  EXPECT_EQ(value(of_yaml(shape + "  vocab_size: 128256\n"), "model.name"), "llama3-70b");
  EXPECT_EQ(value(of_yaml(shape + "  vocab_size: 32000\n"), "model.name"), "llama2-70b");
  const ImportedKnobs either = of_yaml(shape);
  EXPECT_NE(either.model_note.find("no vocab_size tells them apart"), std::string::npos) << either.model_note;
}

TEST(ForeignKnobs, WhatStandsWhereNoModelIsFoundIsSaid) {
  const std::vector<ForeignSetting> shape{
      {"num_layers", "32", 1}, {"hidden_size", "4160", 2}, {"num_attention_heads", "65", 3}};
  const ImportedKnobs laid = import_knobs(shape);
  EXPECT_TRUE(laid.model_note.empty());
  EXPECT_EQ(laid.no_model_note,
            "none of ours has this shape: num_layers, hidden_size, num_attention_heads are laid over quickstart-llama, "
            "a small Llama, whose ffn_hidden_size, num_query_groups, vocab_size stay; model.name says another or a "
            "config.json");
  EXPECT_NE(imported_toml(laid, "x.yaml").find("# Model: none of ours"), std::string::npos);
  EXPECT_EQ(import_knobs({{"seq_length", "64", 1}}).no_model_note,
            "none is said, and quickstart-llama stands: model.name says another");
}

TEST(ForeignKnobs, ARecipesNameIsTheRecipe) {
  const auto recipe = [](const std::string& name) {
    return value(of_yaml("mixed_precision: " + name + "\nmodel:\n  bf16: true\n"), "precision.recipe");
  };
  EXPECT_EQ(recipe("bf16_with_fp8_current_scaling_mixed"), "fp8_current");
  EXPECT_EQ(recipe("bf16_with_fp8_delayed_scaling_mixed"), "fp8_delayed");
  EXPECT_EQ(recipe("bf16_with_fp8_subchannel_scaling_mixed"), "fp8_blockwise");
  EXPECT_EQ(recipe("bf16_with_mxfp8_mixed"), "mxfp8");
  EXPECT_EQ(recipe("bf16_with_nvfp4_mixed"), "nvfp4");
  EXPECT_EQ(recipe("bf16_mixed"), "bf16");
  const ImportedKnobs other = of_yaml("mixed_precision: made_up\nmodel:\n  bf16: true\n");
  EXPECT_EQ(value(other, "precision.recipe"), "(none)");
  EXPECT_TRUE(listed(other, "mixed_precision"));
}

TEST(ForeignKnobs, ALearningRateAloneAndASuiteForGpus) {
  const ImportedKnobs imported = of_yaml("optimizer:\n  lr: 0.000001\nmodel:\n  tensor_model_parallel_size: 4\n");
  EXPECT_EQ(value(imported, "optimizer.min_lr"), "0");
  const std::string toml = imported_toml(imported, "x");
  EXPECT_NE(toml.find("host.device = \"cuda\"\n"), std::string::npos) << toml;
  EXPECT_NE(toml.find("# how many GPUs is not said: one replica of the model is taken (TP 4 x CP 1 x PP 1 = 4"),
            std::string::npos)
      << toml;
  const std::string said = imported_toml(of_yaml("a:\n  world_size: 8\n"), "x");
  EXPECT_EQ(said.find('#'), said.find("# Model: none is said")) << said;
  EXPECT_EQ(said.find('#'), said.rfind('#')) << "nothing is to be told of GPUs: " << said;
}

TEST(ForeignKnobs, ADumpBehindALaunchersMarkAndLlmqsOptions) {
  for (const char* mark : {"[rank7]:", "0: ", "[default0]:2025-01-01 10:00:00 "}) {
    const std::string m = mark;
    const auto settings = read_argument_dump(m + "------------------------ arguments ------------------------\n" + m +
                                             "  seq_length ...................................... 2048\n" + m +
                                             "  tokenizer_model ................................. ../a.b .c\n" + m +
                                             "-------------------- end of arguments ---------------------\n");
    ASSERT_EQ(settings.size(), 2U) << mark;
    EXPECT_EQ(settings[0].key, "seq_length") << mark;
    EXPECT_EQ(settings[0].value, "2048");
    EXPECT_EQ(settings[1].value, "../a.b .c");
  }
  const ImportedKnobs imported =
      import_knobs({{"batch-size", "8", 1}, {"grad-accumulation", "4", 2}, {"gpus", "2", 3}, {"seq-len", "1024", 4}});
  EXPECT_EQ(value(imported, "train.micro_batch_size"), "8");
  EXPECT_EQ(value(imported, "train.global_batch_size"), "64");
  EXPECT_EQ(value(imported, "train.seq_length"), "1024");
  EXPECT_EQ(value(imported, "parallel.gpus"), "2");
  EXPECT_TRUE(imported.not_understood.empty());
}

}  // namespace
}  // namespace mbb::suites
