// Every family learns the shipped text: below what its letter frequencies alone give away.
#include <gtest/gtest.h>

#include "trainer/models/small_families.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

class Learning : public testing::TestWithParam<Small> {};

TEST_P(Learning, BelowUnigramEntropy) {
  Config c = config_of(GetParam());
  c.model.vocab_size = 256;
  c.train.seq_length = 32;
  c.train.encoder_seq_length = 0;
  c.train.micro_batch_size = 4;
  c.train.global_batch_size = 4;
  // One table that both embeds and predicts learns more slowly.
  const bool tied = std::string(GetParam().name) == "gpt";
  c.train.train_iters = tied ? 160 : 50;
  c.optimizer.lr = 1e-2;
  c.optimizer.min_lr = 1e-3;
  c.optimizer.init_method_std = 0.1;
  if (c.model.window_size > 0) c.model.window_size = 16;
  c.model.max_position_embeddings = 64;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  const auto data = open_dataset(*layout);
  ASSERT_TRUE(data.has_value()) << format(data.error());
  const auto result =
      train(*layout, *programs, [&](int64_t index, std::span<int32_t> tokens) { return data->sample(index, tokens); });
  ASSERT_TRUE(result.has_value()) << format(result.error());
  const auto entropy = unigram_entropy(data->source());
  ASSERT_TRUE(entropy.has_value());
  double last = 0;
  for (size_t i = 0; i < 5; ++i) last += result->steps[result->steps.size() - 1 - i].loss / 5;
  EXPECT_LT(last, *entropy);
}

// One model a family; the variants differ where another test looks.
std::vector<Small> one_a_family() {
  std::vector<Small> models;
  for (const Small& family : kFamilies)
    for (const char* name :
         {"gpt", "llama31", "nemotron", "qwen25", "qwen3", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3_mtp", "t5"})
      if (std::string(family.name) == name) models.push_back(family);
  return models;
}

INSTANTIATE_TEST_SUITE_P(All, Learning, testing::ValuesIn(one_a_family()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
