// A vocabulary padded for tensor parallelism trains like the one that is not: padding never wins and learns nothing.
#include <gtest/gtest.h>

#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/run/equal_training_test.h"

namespace mbb::trainer {
namespace {

Config odd_vocabulary(const char* family) {
  for (const Small& small : kFamilies) {
    if (std::string_view(small.name) != family) continue;
    Config c = config_of(small);
    c.model.vocab_size = 61;
    c.train.train_iters = 5;
    c.parallel.use_distributed_optimizer = false;
    return c;
  }
  ADD_FAILURE() << "no family " << family;
  return {};
}

TEST(PaddedVocabulary, TrainsLikeTheOneThatIsNot) {
  for (const char* family : {"gpt", "llama31", "deepseek_v3_mtp"}) {
    const auto plain = train_and_collect(odd_vocabulary(family));
    ASSERT_TRUE(plain.has_value()) << format(plain.error());
    for (const int tp : {1, 2}) {
      SCOPED_TRACE(std::string(family) + " tp " + std::to_string(tp));
      Config c = odd_vocabulary(family);
      c.model.make_vocab_size_divisible_by = 24;
      c.parallel.tensor_model_parallel_size = tp;
      auto padded = train_and_collect(c);
      ASSERT_TRUE(padded.has_value()) << format(padded.error());
      for (size_t i = 0; i < plain->steps.size(); ++i) {
        EXPECT_NEAR(padded->steps[i].loss, plain->steps[i].loss, 1e-5 * plain->steps[i].loss) << "step " << i;
        EXPECT_NEAR(padded->steps[i].grad_norm, plain->steps[i].grad_norm, 1e-4 * plain->steps[i].grad_norm);
      }
      for (const char* table : {"embedding.weight", "lm_head.weight"}) {
        auto found = padded->gradients[0].find(table);
        if (found == padded->gradients[0].end()) continue;
        auto& rows = found->second;
        ASSERT_EQ(rows.size(), static_cast<size_t>((tp == 1 ? 72 : 96) * c.model.hidden_size));
        const auto real = static_cast<size_t>(61 * c.model.hidden_size);
        for (size_t i = real; i < rows.size(); ++i) ASSERT_EQ(rows[i], 0.0) << table << " " << i;
        rows.resize(real);
      }
      expect_equal_gradients(padded->gradients[0], plain->gradients[0], 1e-5);
    }
  }
}

TEST(PaddedVocabulary, ReachesTheNextMultipleAndIsSaid) {
  Config c = odd_vocabulary("gpt");
  c.model.vocab_size = 50257;
  c.model.make_vocab_size_divisible_by = 128;
  c.parallel.tensor_model_parallel_size = 2;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  EXPECT_EQ(layout->vocab, 50432);
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  const Explain costs = explain(*layout, *programs);
  EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
  const auto text = to_text(costs);
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("vocabulary 50257 padded to 50432"), std::string::npos) << *text;
}

}  // namespace
}  // namespace mbb::trainer
