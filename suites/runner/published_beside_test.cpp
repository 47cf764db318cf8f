// Which published rows stand beside a configuration, and in what words.
#include "suites/runner/published_beside.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

trainer::Config llama70b() {
  trainer::Config c;
  c.model.name = "llama3-70b";
  c.precision.recipe = trainer::Recipe::kFp8Current;
  c.parallel.gpus = 64;
  c.parallel.tensor_model_parallel_size = 4;
  c.parallel.pipeline_model_parallel_size = 8;
  c.parallel.virtual_pipeline_model_parallel_size = 5;
  c.train.seq_length = 8192;
  c.train.global_batch_size = 256;
  return c;
}

TEST(PublishedBeside, TheNewestRowOfTheMappingWithItsSource) {
  const auto layout = trainer::resolve(llama70b());
  ASSERT_TRUE(layout) << layout.error().what;
  const auto rows = published_like(*layout, "h100-sxm");
  ASSERT_GE(rows.size(), 4U);
  for (const auto& row : rows) {
    EXPECT_EQ(row.tp, 4);
    EXPECT_EQ(row.global_batch, 256);
  }
  const std::string text = published_beside(*layout, "h100-sxm");
  EXPECT_EQ(text, "1664 tokens/s/GPU, 731 TFLOP/s causal; Megatron-Bridge 26.04.01, 3 older");
  EXPECT_EQ(published_beside(*layout, "a100-sxm"), "");
}

TEST(PublishedBeside, FullAttentionIsRecountedAndNamed) {
  trainer::Config c = llama70b();
  c.precision.recipe = trainer::Recipe::kBf16;
  c.parallel.pipeline_model_parallel_size = 4;
  c.parallel.context_parallel_size = 2;
  c.train.global_batch_size = 128;
  const auto layout = trainer::resolve(c);
  ASSERT_TRUE(layout) << layout.error().what;
  const std::string text = published_beside(*layout, "h100-sxm");
  EXPECT_NE(text.find("1118 tokens/s/GPU, 502 TFLOP/s causal, published as 537 with attention full"), std::string::npos)
      << text;
  EXPECT_NE(text.find("with attention full"), std::string::npos) << text;
}

TEST(PublishedBeside, AnotherMappingBatchOrProxyHasNone) {
  trainer::Config c = llama70b();
  c.parallel.virtual_pipeline_model_parallel_size = 10;
  EXPECT_EQ(published_beside(*trainer::resolve(c), "h100-sxm"), "");
  c = llama70b();
  c.train.global_batch_size = 512;
  EXPECT_EQ(published_beside(*trainer::resolve(c), "h100-sxm"), "");
  c = llama70b();
  c.model.num_layers = 40;
  EXPECT_EQ(published_beside(*trainer::resolve(c), "h100-sxm"), "");
}

}  // namespace
}  // namespace mbb::suites
