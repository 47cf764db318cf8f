// Model FLOPs and parameter counts against the numbers others print.
#include "trainer/models/flops.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::trainer {
namespace {

ModelShape shape_of(const std::string& model, std::int64_t mtp_layers = 0) {
  ModelShape shape = find_model(model).value();
  shape.num_mtp_layers = mtp_layers;
  return shape;
}

struct FlopsCase {
  const char* model;
  std::int64_t seq_length;
  double gflop_per_token;
  double half_digit;  // half a unit of the last printed digit
  std::int64_t mtp_layers = 0;
};

// GFLOP/token as NUMERICS, section 2 prints them.
const FlopsCase kCausal[] = {
    {"llama3-8b", 8192, 51.47, .005},       {"llama3-70b", 8192, 449.22, .005},
    {"llama3.1-405b", 8192, 2523.96, .005}, {"mixtral-8x7b", 4096, 79.71, .005},
    {"qwen3-30b-a3b", 4096, 23.01, .005},   {"qwen3-235b-a22b", 4096, 148.03, .005},
    {"deepseek-v3", 4096, 249.8, .05},      {"deepseek-v3", 4096, 259.99, .005, 1},
    {"gpt-oss-120b", 4096, 32.63, .005},    {"gpt3-175b", 2048, 1061.95, .005},
    {"nemotron4-15b", 4096, 89.16, .005},   {"nemotron4-340b", 4096, 2061.3, .05},
    {"gpt-462b", 4096, 2804.9, .05},        {"mt-nlg-530b", 2048, 3203.6, .05},
    {"mixtral-8x22b", 65536, 369.03, .005},
};
const FlopsCase kFull[] = {
    {"llama3-8b", 8192, 57.91, .005},
    {"llama3-70b", 8192, 481.4, .05},
    {"llama3.1-405b", 8192, 2625.4, .05},
    {"gpt3-175b", 2048, 1076.4, .05},
};

TEST(ModelFlops, CausalFlopsPerTokenAgreeWithThePrintedDigits) {
  for (const FlopsCase& c : kCausal)
    EXPECT_NEAR(flops_per_token(shape_of(c.model, c.mtp_layers), c.seq_length, FlopsConvention::kCausal) / 1e9,
                c.gflop_per_token, c.half_digit)
        << c.model << " with " << c.mtp_layers << " MTP layers";
}

TEST(ModelFlops, FullFlopsPerTokenAgreeWithThePrintedDigits) {
  for (const FlopsCase& c : kFull)
    EXPECT_NEAR(flops_per_token(shape_of(c.model), c.seq_length, FlopsConvention::kFull) / 1e9, c.gflop_per_token,
                c.half_digit)
        << c.model;
}

TEST(ModelFlops, OldTablesOf405BUsedSixteenKeyValueHeads) {
  ModelShape shape = shape_of("llama3.1-405b");
  shape.num_query_groups = 16;
  EXPECT_NEAR(flops_per_token(shape, 8192, FlopsConvention::kFull) / 1e9, 2651, .5);
}

TEST(ModelFlops, PartsAddUpAndStepIsTokensTimesPerToken) {
  for (const ModelShape& shape : all_models()) {
    const std::int64_t encoder_length = shape.is_encoder_decoder() ? 512 : 0;
    const ModelFlops step =
        model_flops(shape, BatchLengths::uniform(1024, 7, encoder_length), FlopsConvention::kCausal);
    const double per_token = flops_per_token(shape, 1024, FlopsConvention::kCausal, encoder_length);
    EXPECT_NEAR(step.total() / (7 * 1024.0 * per_token), 1.0, 1e-12) << shape.name;
    EXPECT_GE(step.mlp + step.moe, 0.1 * step.total()) << shape.name;
  }
}

// The oracle counts pairs one by one.
double brute_pairs(std::int64_t length, std::int64_t window_size) {
  double pairs = 0;
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = 0; j <= i; ++j) pairs += i - j < window_size ? 1 : 0;
  return pairs;
}

TEST(ModelFlops, WindowPairsAreTheExactCount) {
  for (const std::int64_t length : {1, 2, 5, 33, 100})
    for (const std::int64_t window : {1, 2, 7, 33, 64, 200})
      EXPECT_DOUBLE_EQ(BatchLengths::uniform(length, 3).window_pairs(window), 3 * brute_pairs(length, window))
          << length << " tokens, window " << window;
}

TEST(ModelFlops, PackedDocumentsAttendOnlyToThemselves) {
  const ModelShape shape = shape_of("llama3-8b");
  const BatchLengths packed = BatchLengths::packed({1000, 3000, 96});
  EXPECT_DOUBLE_EQ(packed.tokens(), 4096);
  EXPECT_DOUBLE_EQ(packed.s2(), 1e6 + 9e6 + 9216);
  const ModelFlops flops = model_flops(shape, packed, FlopsConvention::kCausal);
  EXPECT_DOUBLE_EQ(flops.attention_core, packed.s2() * 6 * 32 * 4096);
  const ModelFlops padded = model_flops(shape, BatchLengths::uniform(4096), FlopsConvention::kCausal);
  EXPECT_DOUBLE_EQ(flops.attention_linear, padded.attention_linear);
  EXPECT_LT(flops.total(), padded.total());
}

TEST(ModelFlops, ShortDocumentsInSlidingLayersAreOrdinaryCausalOnes) {
  ModelShape sliding = shape_of("gpt-oss-20b");
  ModelShape plain = sliding;
  plain.sliding_window = 0;
  const BatchLengths batch = BatchLengths::packed({128, 64, 1});
  EXPECT_DOUBLE_EQ(model_flops(sliding, batch, FlopsConvention::kCausal).total(),
                   model_flops(plain, batch, FlopsConvention::kCausal).total());
}

TEST(ModelFlops, EncoderDecoderFollowsItsFormula) {
  const ModelShape shape = shape_of("t5-11b");
  const double te = 512, td = 128, h = 4096, q = 4096, f = 10240, layers = 24;
  const ModelFlops flops = model_flops(shape, BatchLengths::uniform(128, 1, 512), FlopsConvention::kCausal);
  EXPECT_DOUBLE_EQ(flops.attention_linear,
                   6 * layers * (te + td) * (h * 3 * q + q * h) + 6 * layers * (td * 2 * h * q + te * 2 * h * q));
  EXPECT_DOUBLE_EQ(flops.attention_core,
                   12 * layers * q * te * te + 6 * layers * q * td * td + 12 * layers * q * td * te);
  EXPECT_DOUBLE_EQ(flops.mlp, 6 * layers * (te + td) * h * f * 3);
  EXPECT_DOUBLE_EQ(flops.logits, 6 * td * h * 32128);
}

struct CountCase {
  const char* model;
  double billions;
  double tolerance;
  std::int64_t mtp_layers = 0;
};

// The first five from NUMERICS, section 2; the rest as the models' authors state them.
const CountCase kCounts[] = {
    {"llama3-8b", 8.030, .0005},     {"llama3-70b", 70.554, .0005},   {"llama3.1-405b", 405.853, .0005},
    {"mixtral-8x7b", 46.703, .0005}, {"qwen2.5-7b", 7.616, .0005},    {"llama2-7b", 6.738, .0005},
    {"llama2-13b", 13.016, .0005},   {"llama2-70b", 68.977, .0005},   {"mixtral-8x22b", 140.6, .05},
    {"qwen2.5-0.5b", .494, .0005},   {"qwen2.5-1.5b", 1.54, .005},    {"qwen2.5-3b", 3.09, .005},
    {"qwen2.5-14b", 14.8, .05},      {"qwen2.5-32b", 32.8, .05},      {"qwen2.5-72b", 72.7, .05},
    {"qwen3-0.6b", .6, .05},         {"qwen3-1.7b", 1.7, .05},        {"qwen3-4b", 4.0, .05},
    {"qwen3-8b", 8.2, .05},          {"qwen3-14b", 14.8, .05},        {"qwen3-32b", 32.8, .05},
    {"qwen3-30b-a3b", 30.5, .05},    {"qwen3-235b-a22b", 235.1, .05}, {"gpt-oss-20b", 20.91, .005},
    {"gpt-oss-120b", 116.83, .005},  {"deepseek-v3", 671.03, .005},   {"gpt2-1.5b", 1.558, .0005},
    {"t5-220m", .248, .0005},        {"t5-3b", 2.85, .005},           {"t5-11b", 11.1, .05},
    {"gated-h1600", 2.13, .005},     {"gpt3-126m", .126, .0005},      {"gpt3-175b", 175, .5},
    {"nemotron4-15b", 15.6, .05},    {"nemotron4-340b", 341, .5},     {"mt-nlg-530b", 530, .5},
    {"gpt-462b", 462, .5},
};

TEST(ParameterCount, AgreesWithThePublishedCounts) {
  for (const CountCase& c : kCounts)
    EXPECT_NEAR(static_cast<double>(count_parameters(shape_of(c.model)).total()) / 1e9, c.billions, c.tolerance)
        << c.model;
}

TEST(ParameterCount, OfActiveParametersAndOfMtp) {
  EXPECT_NEAR(static_cast<double>(count_parameters(shape_of("gpt-oss-120b")).active) / 1e9, 5.71, .01);
  EXPECT_NEAR(static_cast<double>(count_parameters(shape_of("qwen3-235b-a22b")).active) / 1e9, 22.2, .05);
  EXPECT_NEAR(static_cast<double>(count_parameters(shape_of("mixtral-8x7b")).active) / 1e9, 12.88, .01);
  EXPECT_NEAR(static_cast<double>(count_parameters(shape_of("deepseek-v3")).active) / 1e9, 37.5, .1);
  // The released checkpoint holds 684.5 G: its MTP layer comes with copies of the embedding and the head.
  const ModelShape mtp = shape_of("deepseek-v3", 1);
  const auto copies = static_cast<double>(2 * mtp.vocab_size * mtp.hidden_size);
  EXPECT_NEAR((static_cast<double>(count_parameters(mtp).total()) + copies) / 1e9, 684.5, .05);
  EXPECT_EQ(count_parameters(shape_of("llama3-8b")).active, count_parameters(shape_of("llama3-8b")).total());
}

}  // namespace
}  // namespace mbb::trainer
