// A pack is its sequences: loss and gradients equal those of the same sequences padded, one a row.
#include <cmath>

#include "trainer/data/packing.h"
#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kLongest = 12, kPack = 30;

SequenceDataset sequences(bool packed) {
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 16; ++d) {
    documents.emplace_back();
    for (int i = 0; i < 3 + (d * 5) % 11; ++i) documents.back().push_back((d * 7 + i * i * 3 + i) % 64);
  }
  auto source = make_in_memory("sixteen documents", documents, 64);
  EXPECT_TRUE(source.has_value());
  auto data = SequenceDataset::open(std::move(*source), {.lengths = SequenceLengths::kDocuments, .longest = kLongest},
                                    {.size = packed ? kPack : kLongest, .packed = packed, .most_sequences = 6});
  EXPECT_TRUE(data.has_value());
  return std::move(*data);
}

Config rows_of(Config c, const SequenceDataset& data, bool packed) {
  c.packing.sequences = SequenceLengths::kDocuments;
  c.train.seq_length = kLongest;
  c.train.micro_batch_size = packed ? 1 : 2;
  c.train.global_batch_size = data.rows();
  c.train.train_iters = 2;
  c.optimizer.lr_warmup_iters = 0;
  if (packed) c.packing.packed_sequence_size = kPack;
  if (packed) c.packing.max_sequences = 6;
  return c;
}

// Two steps: the second one's loss and norm follow from every gradient of the first.
std::vector<StepReport> two_steps(const Config& config, const SequenceDataset& data) {
  const Built built = build(config);
  TrainOptions options;
  options.sequences = &data;
  const auto none = [](int64_t, std::span<int32_t>) -> Status { return {}; };
  const auto result = train(built.layout, built.programs, none, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  return result ? result->steps : std::vector<StepReport>{};
}

class Packing : public testing::TestWithParam<Small> {};

TEST_P(Packing, PackedEqualsPadded) {
  Config c = config_of(GetParam());
  c.train.hidden_dropout = c.train.attention_dropout = 0;     // counters follow rows
  c.model.moe_aux_loss_coeff = c.model.moe_z_loss_coeff = 0;  // means over rows, padding included
  const SequenceDataset padded_rows = sequences(false), packs = sequences(true);
  ASSERT_EQ(padded_rows.rows(), 16);
  ASSERT_GT(packs.rows(), 2);
  const auto padded = two_steps(rows_of(c, padded_rows, false), padded_rows);
  const auto packed = two_steps(rows_of(c, packs, true), packs);
  ASSERT_EQ(packed.size(), 2U);
  ASSERT_EQ(padded.size(), 2U);
  // An expert bias that steers by load moves with the padding it counted.
  const size_t steps = std::string(GetParam().name) == "deepseek_v3" ? 1 : 2;
  for (size_t i = 0; i < steps; ++i) {
    EXPECT_EQ(packed[i].tokens, padded[i].tokens);
    EXPECT_EQ(packed[i].squares, padded[i].squares);
    EXPECT_NEAR(packed[i].loss, padded[i].loss, 1e-5 * padded[i].loss) << "step " << i;
    EXPECT_NEAR(packed[i].grad_norm, padded[i].grad_norm, 2e-4 * padded[i].grad_norm) << "step " << i;
  }
  EXPECT_GT(packs.efficiency(), 1.3 * padded_rows.efficiency());
}

std::vector<Small> packable() {
  std::vector<Small> families;
  for (const Small& family : kFamilies) {
    const std::string name = family.name;
    // Refused (two token streams, predictions further on), and what goes by a token's place among padding: capacity,
    // balanced load, dropout.
    if (name != "t5" && name != "deepseek_v3_mtp" && name != "mixtral_capacity" && name != "mixtral_balanced" &&
        name != "gpt_dropout")
      families.push_back(family);
  }
  return families;
}

INSTANTIATE_TEST_SUITE_P(All, Packing, testing::ValuesIn(packable()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(PackingMappings, EveryMappingTrainsLikeOneRank) {
  const SequenceDataset packs = sequences(true);
  Config c = rows_of(config_of(kFamilies[2]), packs, true);
  c.train.global_batch_size = 4;
  const auto one = two_steps(c, packs);
  for (const auto& [tp, pp, dp] : {std::tuple{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}}) {
    Config many = c;
    many.parallel.tensor_model_parallel_size = tp;
    many.parallel.pipeline_model_parallel_size = pp;
    many.parallel.gpus = tp * pp * dp;
    many.memory.recompute_granularity = pp > 1 ? RecomputeGranularity::kFull : RecomputeGranularity::kNone;
    const auto steps = two_steps(many, packs);
    ASSERT_EQ(steps.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(steps[i].loss, one[i].loss, 1e-5 * one[i].loss);
      EXPECT_NEAR(steps[i].grad_norm, one[i].grad_norm, 1e-4 * one[i].grad_norm);
      EXPECT_EQ(steps[i].squares, one[i].squares);
      EXPECT_EQ(steps[i].imbalance > 1.0, dp > 1);
    }
  }
}

TEST(PackingKnobs, RefusalsNameKnobAndRemedy) {
  const auto refused = [](const std::function<void(Config&)>& change) {
    Config c = config_of(kFamilies[2]);
    c.packing.sequences = SequenceLengths::kLognormal;
    c.packing.packed_sequence_size = 64;
    c.train.micro_batch_size = 1;
    change(c);
    const auto layout = resolve(c);
    return layout ? std::string("accepted") : layout.error().what;
  };
  EXPECT_EQ(refused([](Config&) {}), "accepted");
  EXPECT_EQ(refused([](Config& c) { c.packing.sequences = SequenceLengths::kStream; }),
            "[packing] is given, and packing.sequences = stream has no sequences to pack");
  EXPECT_EQ(refused([](Config& c) { c.train.micro_batch_size = 2; }),
            "train.micro_batch_size = 2 with packing.packed_sequence_size: a pack is alone in its micro-batch");
  EXPECT_EQ(refused([](Config& c) { c.packing.packed_sequence_size = 8; }),
            "train.seq_length = 16 is more than packing.packed_sequence_size = 8");
  EXPECT_EQ(refused([](Config& c) {
              c.packing.sequences = SequenceLengths::kDocuments;
              c.packing.mean_length = 5;
            }),
            "packing.mean_length is given, and packing.sequences draws no lengths");
  EXPECT_EQ(refused([](Config& c) {
              c.packing.sequences = SequenceLengths::kUniform;
              c.packing.length_sigma = 2;
            }),
            "packing.length_sigma is given, and only packing.sequences = lognormal reads it");
  EXPECT_EQ(refused([](Config& c) {
              c.packing.packed_sequence_size = 0;
              c.packing.max_sequences = 5;
            }),
            "packing.max_sequences is given, and packing.packed_sequence_size is 0");
  const std::string mtp = refused([](Config& c) {
    c.model = {};
    deepseek(c);
    c.model.mtp_num_layers = 1;
  });
  EXPECT_TRUE(mtp.starts_with("packing.sequences with model ")) << mtp;
}

TEST(PackingKnobs, OpenRowsOfTheShippedText) {
  Config c;
  c.packing.sequences = SequenceLengths::kLognormal;
  c.packing.packed_sequence_size = 256;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  EXPECT_EQ(layout->sequence, 256);
  const auto packs = open_sequences(*layout);
  ASSERT_TRUE(packs.has_value()) << format(packs.error());
  EXPECT_GT(packs->efficiency(), 0.9);
  EXPECT_GT(packs->cut().truncated, 0);
  c.packing.packed_sequence_size = 0;
  const auto rows = open_sequences(*resolve(c));
  ASSERT_TRUE(rows.has_value());
  EXPECT_LT(rows->efficiency(), 0.5);
}

}  // namespace
}  // namespace mbb::trainer
