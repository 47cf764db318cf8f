// A pack is its sequences: loss and gradients equal those of the same sequences padded, one a row.
#include <fmt/core.h>

#include <cmath>
#include <functional>
#include <optional>

#include "trainer/data/packing.h"
#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kLongest = 12, kPack = 32;

// Rows of sixteen short documents as `config` wants them, `longer` times as long; `unit` above 0: what every sequence
// is padded to.
SequenceDataset sequences(const Config& config, int64_t unit = 0, int longer = 1) {
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 16; ++d) {
    documents.emplace_back();
    for (int i = 0; i < longer * (3 + (d * 5) % 11); ++i) documents.back().push_back((d * 7 + i * i * 3 + i) % 64);
  }
  auto source = make_in_memory("sixteen documents", documents, 64);
  EXPECT_TRUE(source.has_value());
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  RowOptions options = row_options(*layout);
  if (unit > 0) options.unit = unit;
  const SequenceCuts cuts{.lengths = SequenceLengths::kDocuments,
                          .longest = config.train.seq_length,
                          .longest_encoder = layout->longest_encoder_part()};
  auto data = SequenceDataset::open(std::move(*source), cuts, options);
  EXPECT_TRUE(data.has_value());
  return std::move(*data);
}

// `rows` a step.
Config rows_of(Config c, bool packed, int64_t rows = 2) {
  c.packing.sequences = SequenceLengths::kDocuments;
  c.train.seq_length = kLongest;
  c.train.micro_batch_size = packed || c.model.encoder_num_layers > 0 ? 1 : 2;
  c.train.global_batch_size = rows;
  c.train.train_iters = 2;
  c.optimizer.lr_warmup_iters = 0;
  if (packed) c.packing.packed_sequence_size = kPack;
  if (packed) c.packing.max_sequences = 6;
  return c;
}

// Two steps: the second one's loss and norm follow from every gradient of the first.
std::vector<StepReport> two_steps(const Config& config, const SequenceDataset& data,
                                  const std::function<void(TrainOptions&)>& set = {}) {
  const Built built = build(config);
  TrainOptions options;
  options.sequences = &data;
  if (set) set(options);
  const auto none = [](int64_t, std::span<int32_t>) -> Status { return {}; };
  const auto result = train(built.layout, built.programs, none, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  return result ? result->steps : std::vector<StepReport>{};
}

void expect_near(const std::optional<double>& value, const std::optional<double>& wanted) {
  ASSERT_EQ(value.has_value(), wanted.has_value());
  if (value) {
    EXPECT_NEAR(*value, *wanted, 1e-5 * *wanted);
  }
}

void expect_same_batches(const std::vector<StepReport>& packed, const std::vector<StepReport>& padded) {
  ASSERT_EQ(packed.size(), padded.size());
  for (size_t i = 0; i < padded.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "step " << i);
    EXPECT_EQ(packed[i].tokens, padded[i].tokens);
    EXPECT_EQ(packed[i].squares, padded[i].squares);
    EXPECT_NEAR(packed[i].loss, padded[i].loss, 1e-5 * padded[i].loss);
    EXPECT_NEAR(packed[i].grad_norm, padded[i].grad_norm, 2e-4 * padded[i].grad_norm);
    expect_near(packed[i].mtp_loss, padded[i].mtp_loss);
    expect_near(packed[i].balance_loss, padded[i].balance_loss);
    expect_near(packed[i].z_loss, padded[i].z_loss);
  }
}

class Packing : public testing::TestWithParam<Small> {};

TEST_P(Packing, PackedEqualsPadded) {
  Config c = config_of(GetParam());
  c.train.hidden_dropout = c.train.attention_dropout = 0;  // counters follow rows
  c.model.moe_aux_loss_coeff = 0;  // balances the experts of a micro-batch, which holds other documents here
  const SequenceDataset padded_rows = sequences(rows_of(c, false)), packs = sequences(rows_of(c, true));
  ASSERT_EQ(padded_rows.rows(), 16);
  ASSERT_GT(packs.rows(), 1);
  const auto padded = two_steps(rows_of(c, false, padded_rows.rows()), padded_rows);
  const auto packed = two_steps(rows_of(c, true, packs.rows()), packs);
  ASSERT_EQ(packed.size(), 2U);
  ASSERT_EQ(padded.size(), 2U);
  expect_same_batches(packed, padded);
  EXPECT_GT(packs.efficiency(), 1.3 * padded_rows.efficiency());
}

std::vector<Small> packable() {
  std::vector<Small> families;
  for (const Small& family : kFamilies) {
    const std::string name = family.name;
    // What goes by a token's place among padding: capacity, balanced load, dropout.
    if (name != "mixtral_capacity" && name != "mixtral_balanced" && name != "gpt_dropout") families.push_back(family);
  }
  return families;
}

INSTANTIATE_TEST_SUITE_P(All, Packing, testing::ValuesIn(packable()),
                         [](const auto& test) { return std::string(test.param.name); });

// The same documents in one micro-batch, as a pack and as padded rows: what balances experts is worth the same too, at
// the models' own coefficients.
class PackedExperts : public testing::TestWithParam<const char*> {};

TEST_P(PackedExperts, PaddingHasNoPartInRouting) {
  Config c = config_of(family_of(GetParam()));
  c.model.moe_z_loss_coeff = 0.01;
  Config rows = rows_of(c, false, 16), pack = rows_of(c, true, 1);
  rows.train.micro_batch_size = 16;
  // Of a capacity, as many rows: it follows from their number.
  pack.packing.packed_sequence_size = c.parallel.moe_expert_capacity_factor > 0 ? 16 * kLongest : 144;
  pack.packing.max_sequences = 18;
  const SequenceDataset padded_rows = sequences(rows), packs = sequences(pack);
  ASSERT_EQ(padded_rows.rows(), 16);
  ASSERT_EQ(packs.rows(), 1);
  ASSERT_LT(padded_rows.efficiency(), 0.7);
  ASSERT_LT(packs.efficiency(), 0.95);
  const auto padded = two_steps(rows, padded_rows);
  ASSERT_EQ(padded.size(), 2U);
  ASSERT_TRUE(padded[0].z_loss.has_value());
  ASSERT_EQ(padded[0].balance_loss.has_value(), std::string_view(GetParam()) != "gpt_oss");  // it has none
  expect_same_batches(two_steps(pack, packs), padded);
  for (Config* config : {&rows, &pack}) config->parallel.moe_router_fusion = true;
  expect_same_batches(two_steps(pack, packs), padded);
  expect_same_batches(two_steps(rows, padded_rows), padded);
}

INSTANTIATE_TEST_SUITE_P(Families, PackedExperts,
                         testing::Values("mixtral", "mixtral_capacity", "qwen3_moe", "gpt_oss", "deepseek_v3",
                                         "deepseek_v3_mtp"),
                         [](const auto& test) { return std::string(test.param); });

void expect_same_steps(const Config& many, const std::vector<StepReport>& one, const SequenceDataset& rows) {
  const auto steps = two_steps(many, rows);
  ASSERT_EQ(steps.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(steps[i].loss, one[i].loss, 1e-5 * one[i].loss) << "step " << i;
    EXPECT_NEAR(steps[i].grad_norm, one[i].grad_norm, 1e-4 * one[i].grad_norm) << "step " << i;
    expect_near(steps[i].balance_loss, one[i].balance_loss);
    EXPECT_EQ(steps[i].tokens, one[i].tokens);
    EXPECT_EQ(steps[i].squares, one[i].squares);
    EXPECT_EQ(steps[i].imbalance > 1.0, many.parallel.gpus > many.parallel.tensor_model_parallel_size *
                                                                 many.parallel.pipeline_model_parallel_size *
                                                                 many.parallel.context_parallel_size);
  }
}

TEST(PackingMappings, EveryMappingTrainsLikeOneRank) {
  for (const char* name : {"llama31", "t5", "deepseek_v3_mtp"}) {
    const Config c = rows_of(config_of(family_of(name)), true, 4);
    const SequenceDataset packs = sequences(c);
    const auto one = two_steps(c, packs);
    for (const auto& [tp, pp, dp] : {std::tuple{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}}) {
      SCOPED_TRACE(testing::Message() << name << " tp " << tp << " pp " << pp << " dp " << dp);
      Config many = c;
      many.parallel.tensor_model_parallel_size = tp;
      many.parallel.pipeline_model_parallel_size = pp;
      many.parallel.gpus = tp * pp * dp;
      many.memory.recompute_granularity = pp > 1 ? RecomputeGranularity::kFull : RecomputeGranularity::kNone;
      expect_same_steps(many, one, packs);
    }
  }
}

// Tokens that are exchanged, cut over TP or over CP leave padding behind likewise, and a capacity has places for tokens
// alone.
TEST(PackingMappings, ExpertsOfPacksAndPaddedRowsTrainLikeOneRank) {
  for (const char* name : {"mixtral", "mixtral_capacity", "gpt_oss", "deepseek_v3"}) {
    for (const bool packed : {true, false}) {
      const Config c = rows_of(config_of(family_of(name)), packed, 4);
      const SequenceDataset rows = sequences(c, packed ? 4 : 0);
      const auto one = two_steps(c, rows);
      for (const auto& [tp, cp, ep, etp] : {std::tuple{2, 1, 1, 2}, {2, 1, 2, 1}, {1, 1, 2, 1}, {1, 2, 2, 1}}) {
        if (cp > 1 && std::string_view(name) == "mixtral_capacity") continue;
        SCOPED_TRACE(fmt::format("{} {} tp {} cp {} ep {} etp {}", name, packed ? "packs" : "rows", tp, cp, ep, etp));
        Config many = c;
        many.parallel.tensor_model_parallel_size = tp;
        many.parallel.context_parallel_size = cp;
        many.parallel.expert_model_parallel_size = ep;
        many.parallel.expert_tensor_parallel_size = etp;
        many.parallel.gpus = std::max(tp * cp, ep);
        expect_same_steps(many, one, rows);
      }
    }
  }
}

// A record has no choices of padding, and needs none.
TEST(PackingMappings, ChoicesOfPaddedRowsAreRecordedAndReplayed) {
  Config c = rows_of(config_of(family_of("mixtral")), false, 4);
  const SequenceDataset rows = sequences(c);
  c.parallel.moe_router_replay = "record";
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  RoutingTable table(layout->sequence, layout->model.moe.top_k);
  const auto one = two_steps(c, rows, [&](TrainOptions& options) { options.record = &table; });
  ASSERT_FALSE(table.empty());
  c.parallel.moe_router_replay = "a table";
  c.parallel.tensor_model_parallel_size = 2;
  const auto again = two_steps(c, rows, [&](TrainOptions& options) { options.replay = &table; });
  expect_same_batches(again, one);
}

// Each rank holds two chunks of every sequence of a pack.
class PackingContext : public testing::TestWithParam<const char*> {};

TEST_P(PackingContext, EveryExchangeTrainsLikeOneRank) {
  Config c = rows_of(config_of(family_of(GetParam())), true, 4);
  if (c.model.num_query_groups > 0) c.model.num_query_groups = 4;  // an a2a of four ranks divides them
  const SequenceDataset packs = sequences(c, 8);
  ASSERT_GT(packs.sequences(0).size(), 1U);
  const auto one = two_steps(c, packs);
  for (const auto& [cp, tp, dp, comm] : {std::tuple{2, 1, 1, "p2p"},
                                         {2, 1, 2, "all_gather"},
                                         {2, 1, 1, "a2a"},
                                         {4, 1, 1, "p2p"},
                                         {4, 1, 1, "a2a+p2p"},
                                         {2, 2, 1, "p2p"}}) {
    SCOPED_TRACE(testing::Message() << comm << " cp " << cp << " tp " << tp << " dp " << dp);
    Config many = c;
    many.parallel.context_parallel_size = cp;
    many.parallel.cp_comm_type = comm;
    if (std::string_view(comm) == "a2a+p2p") many.parallel.hierarchical_context_parallel_sizes = {2, 2};
    many.parallel.tensor_model_parallel_size = tp;
    many.parallel.gpus = cp * tp * dp;
    many.fusion.bias_dropout_fusion = c.train.hidden_dropout > 0;
    expect_same_steps(many, one, packs);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PackingContext,
                         testing::Values("llama31", "gpt", "gpt_dropout", "qwen3", "gpt_oss", "mixtral", "qwen3_moe",
                                         "deepseek_v3", "deepseek_v3_mtp"),
                         [](const auto& test) { return std::string(test.param); });

TEST(PackingContextRows, PacksAndPaddedRowsHoldTheSameWork) {
  const Config c = config_of(family_of("llama31"));
  const SequenceDataset padded = sequences(rows_of(c, false));
  const Config rows = rows_of(c, false, padded.rows());
  const auto one = two_steps(rows, padded);
  Config many = rows;
  many.parallel.context_parallel_size = 2;
  expect_same_steps(many, one, padded);
  many.packing.packed_sequence_size = kPack;
  many.packing.max_sequences = 6;
  many.train.micro_batch_size = many.train.global_batch_size = 1;
  const SequenceDataset packs = sequences(many);
  many.train.global_batch_size = packs.rows();
  expect_same_steps(many, one, packs);
}

// Of pairs each rank holds two chunks of both parts; attention both ways and to the encoder sees no padding.
TEST(PackingContextPairs, PacksAndRowsTrainLikeOneRank) {
  for (const bool packed : {true, false}) {
    Config c = rows_of(config_of(family_of("t5")), packed, 4);
    c.train.seq_length = c.train.encoder_seq_length = 16;
    c.train.attention_dropout = 0.1;
    const SequenceDataset pairs = sequences(c, 8, 3);
    const auto one = two_steps(c, pairs);
    for (const auto& [cp, tp, pp, dp, comm] : {std::tuple{2, 1, 1, 1, "p2p"},
                                               {2, 1, 1, 2, "all_gather"},
                                               {2, 1, 1, 1, "a2a"},
                                               {4, 1, 1, 1, "p2p"},
                                               {4, 1, 1, 1, "a2a+p2p"},
                                               {2, 2, 1, 1, "p2p"},
                                               {2, 1, 2, 1, "a2a"}}) {
      SCOPED_TRACE(fmt::format("{} {} cp {} tp {} pp {} dp {}", packed ? "packs" : "rows", comm, cp, tp, pp, dp));
      Config many = c;
      many.parallel.context_parallel_size = cp;
      many.parallel.cp_comm_type = comm;
      if (std::string_view(comm) == "a2a+p2p") many.parallel.hierarchical_context_parallel_sizes = {2, 2};
      many.parallel.tensor_model_parallel_size = tp;
      many.parallel.pipeline_model_parallel_size = pp;
      many.parallel.gpus = cp * tp * pp * dp;
      many.memory.recompute_granularity = pp > 1 ? RecomputeGranularity::kFull : RecomputeGranularity::kNone;
      expect_same_steps(many, one, pairs);
    }
  }
}

// What a layout itself asks for: an encoder's part that its ranks divide.
TEST(PackingContextPairs, EncodersPartsDivideOverTheirRanks) {
  Config c = rows_of(config_of(family_of("t5")), true, 4);
  c.parallel.context_parallel_size = 2;
  const SequenceDataset pairs = sequences(c, 0, 3);
  ASSERT_GT(pairs.cut().sequences.size(), 10U);
  for (const SequenceRange& range : pairs.cut().sequences) EXPECT_EQ(range.encoder % 4, 0);
  const auto steps = two_steps(c, pairs);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_LT(steps[1].loss, steps[0].loss);
}

TEST(PackingContextRows, WhatCannotBeIsRefused) {
  const auto refused = [](const char* name, const std::function<void(Config&)>& change) {
    Config c = rows_of(config_of(family_of(name)), true);
    c.parallel.context_parallel_size = 2;
    change(c);
    const auto layout = resolve(c);
    return layout ? std::string("accepted") : layout.error().what;
  };
  EXPECT_EQ(refused("llama31", [](Config&) {}), "accepted");
  EXPECT_EQ(refused("llama31", [](Config& c) { c.packing.packed_sequence_size = 30; }),
            "packing.packed_sequence_size = 30 is no multiple of 2 × parallel.context_parallel_size = 4");
  EXPECT_NE(refused("mixtral_balanced", [](Config&) {}).find("parallel.moe_router_force_load_balancing"),
            std::string::npos);
  EXPECT_EQ(refused("t5", [](Config&) {}), "accepted");
  EXPECT_EQ(refused("t5", [](Config& c) { c.train.encoder_seq_length = 10; }),
            "train.encoder_seq_length = 10 is no multiple of 2 × parallel.context_parallel_size = 4");
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
  const auto t5 = [](Config& c) {
    c.model = {};
    family_of("t5").shape(c);
  };
  EXPECT_EQ(refused([&](Config& c) {
              t5(c);
              c.packing.packed_sequence_size = 0;
              c.train.micro_batch_size = 2;
            }),
            "train.micro_batch_size = 2 with packing.sequences and model t5-220m: where a row's encoder part ends is "
            "known of one row at a time");
  EXPECT_EQ(refused([&](Config& c) {
              t5(c);
              c.train.encoder_seq_length = 100;
            }),
            "train.encoder_seq_length = 100 is more than packing.packed_sequence_size = 64, which the encoder's packs "
            "have too");
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
