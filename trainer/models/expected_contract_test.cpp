// Loss and every tensor's gradient of small models against what Hugging Face `transformers` computes
// (expected/make_expected.py), from weights and tokens that both sides make by the same formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/comm/local/run_ranks.h"
#include "trainer/data/rng.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kBatch = 2, kLength = 12, kEncoderLength = 10, kVocabulary = 61;

struct Row {
  int64_t elements = 0;
  double norm = 0;  // for "loss": the loss
  std::vector<double> values;
};
using Rows = std::map<std::string, Row>;

double number(std::string_view text) {
  return std::stod(std::string(text));
}

const std::map<std::string, Rows>& expected() {
  static const std::map<std::string, Rows> all = [] {
    std::map<std::string, Rows> models;
    const auto text = read_file(MBB_SOURCE_DIR "/trainer/models/expected/expected.tsv");
    EXPECT_TRUE(text.has_value());
    if (!text) return models;
    for (const std::string_view line : split(*text, '\n')) {
      if (line.empty() || line[0] == '#') continue;
      const auto fields = split(line, '\t');
      Row row{std::stoll(std::string(fields[2])), number(fields[3]), {}};
      for (size_t i = 4; i < fields.size(); ++i) row.values.push_back(number(fields[i]));
      models[std::string(fields[0])][std::string(fields[1])] = row;
    }
    return models;
  }();
  return all;
}

// make_expected.py's formula().
std::vector<float> weights_of(const Tensor& t, bool one_plus) {
  std::vector<float> values(static_cast<size_t>(t.shape.elements()));
  const bool norm = t.path.ends_with("norm.weight");
  const bool small = norm || t.shape.rank() == 1 || t.path.ends_with("bias");
  for (size_t i = 0; i < values.size(); ++i) {
    const double unit = static_cast<double>(rng_mix(path_hash(t.path) + i * kRngGamma) >> 40) * 0x1p-24 * 2.0 - 1.0;
    values[i] = static_cast<float>((norm && !one_plus ? 1.0 : 0.0) + (small ? 0.1 : 0.3) * unit);
  }
  return values;
}

int32_t token(int64_t b, int64_t s, int64_t by_batch, int64_t by_square, int64_t by_position, int64_t first) {
  return static_cast<int32_t>((by_batch * b + by_square * s * s + by_position * s + first) % kVocabulary);
}

StepInput input() {
  StepInput in;
  in.record = {0.0F, 1.0F, 1.0F, 0.0F};
  in.batch = [](int, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
    for (int64_t s = 0; s < kLength; ++s)
      for (int64_t b = 0; b < kBatch; ++b) {
        tokens[static_cast<size_t>(s * kBatch + b)] = token(b, s, 7, 5, 3, 1);
        labels[static_cast<size_t>(s * kBatch + b)] = token(b, s + 1, 7, 5, 3, 1);
      }
    return {};
  };
  in.extra = [](int, std::span<int32_t>, std::span<int32_t> encoder) -> Status {
    for (int64_t s = 0; s < kEncoderLength; ++s)
      for (int64_t b = 0; b < kBatch; ++b) encoder[static_cast<size_t>(s * kBatch + b)] = token(b, s, 11, 3, 1, 2);
    return {};
  };
  return in;
}

struct Computed {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  // of the mean loss
};

Status compute(const Layout& layout, const StepPrograms& programs, World& world, Computed& out) {
  const Program& program = programs.programs[0];
  MB_ASSIGN(auto rank, CpuRank::create(program, programs.plans[0], layout.mesh, world, 1));
  const bool one_plus = layout.model.norm == NormKind::kLayerNorm1p;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (t.main_grad == kNoTensor && !t.path.ends_with(".expert_bias")) continue;
    const std::vector<float> values = weights_of(t, one_plus);
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(rank->data(static_cast<TensorId>(i))));
  }
  MB_ASSIGN(const StepOutput step, rank->step(input()));
  out.loss = step.loss();
  for (const Tensor& t : program.tensors) {
    if (t.main_grad == kNoTensor) continue;
    const auto* grad = reinterpret_cast<const float*>(rank->data(t.main_grad));
    auto& values = out.gradients[t.path];
    for (int64_t i = 0; i < t.shape.elements(); ++i) values.push_back(static_cast<double>(grad[i]) / step.tokens);
  }
  return {};
}

class Expected : public testing::TestWithParam<const char*> {};

TEST_P(Expected, LossAndGradientsEqualTransformers) {
  Config config;
  config.model.name = std::string(MBB_SOURCE_DIR "/trainer/models/expected/") + GetParam() + ".json";
  config.model.make_vocab_size_divisible_by = 1;
  config.train.seq_length = kLength;
  if (std::string_view(GetParam()) == "t5") config.train.encoder_seq_length = kEncoderLength;
  config.train.micro_batch_size = config.train.global_batch_size = kBatch;
  const auto layout = resolve(config);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  Computed computed;
  const Status ran = run_ranks(
      1, [&](World& world) { return compute(*layout, *programs, world, computed); }, LocalOptions{});
  ASSERT_TRUE(ran.has_value()) << format(ran.error());

  const Rows& rows = expected().at(GetParam());
  EXPECT_EQ(rows.size(), computed.gradients.size() + 1);
  EXPECT_NEAR(computed.loss, rows.at("loss").norm, 2e-6 * rows.at("loss").norm);
  for (const auto& [path, grad] : computed.gradients) {
    SCOPED_TRACE(path);
    ASSERT_TRUE(rows.contains(path));
    const Row& row = rows.at(path);
    ASSERT_EQ(row.elements, static_cast<int64_t>(grad.size()));
    double squares = 0;
    for (const double g : grad) squares += g * g;
    EXPECT_NEAR(std::sqrt(squares), row.norm, 2e-5 * row.norm);
    const double scale = 1e-4 * row.norm;
    const size_t n = grad.size();
    const size_t at[] = {0, n / 3, 2 * n / 3, n - 1};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(grad[at[i]], row.values[i], scale) << "element " << at[i];
  }
  // Adding one number to all of a query's scores changes no softmax: GPT's key bias has no gradient.
  if (std::string(GetParam()) == "gpt2") {
    const auto& bias = computed.gradients.at("layers.0.attn.qkv.bias");
    for (size_t i = bias.size() / 3; i < 2 * bias.size() / 3; ++i) EXPECT_NEAR(bias[i], 0.0, 1e-8);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Expected,
                         testing::Values("gpt2", "llama31", "nemotron", "qwen2", "qwen3", "mixtral", "qwen3_moe",
                                         "gpt_oss", "deepseek_v3", "t5"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace mbb::trainer
