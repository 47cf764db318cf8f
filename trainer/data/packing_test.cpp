// Cutting and packing: every sequence once, no pack over its size, never worse than first-fit decreasing's bound.
#include "trainer/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace mbb::trainer {
namespace {

// The definition, quadratic.
std::vector<Pack> by_definition(const std::vector<int64_t>& lengths, int64_t size, int64_t most) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<Pack> packs;
  for (const int32_t i : order) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    auto room = std::find_if(packs.begin(), packs.end(), [&](const Pack& p) {
      return p.tokens + length <= size && static_cast<int64_t>(p.sequences.size()) < most;
    });
    if (room == packs.end()) room = packs.insert(packs.end(), Pack{});
    room->sequences.push_back(i);
    room->tokens += length;
  }
  return packs;
}

TEST(Packing, IsFirstFitDecreasing) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t size = 1 + static_cast<int64_t>(random() % 64);
    const auto most = 1 + static_cast<int64_t>(random() % 8);
    std::vector<int64_t> lengths(random() % 80);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    const auto packs = pack_first_fit_decreasing(lengths, size, most);
    const auto wanted = by_definition(lengths, size, most);
    ASSERT_EQ(packs.size(), wanted.size());
    std::multiset<int32_t> seen;
    for (size_t i = 0; i < packs.size(); ++i) {
      EXPECT_EQ(packs[i].sequences, wanted[i].sequences);
      EXPECT_LE(packs[i].tokens, size);
      EXPECT_LE(static_cast<int64_t>(packs[i].sequences.size()), most);
      seen.insert(packs[i].sequences.begin(), packs[i].sequences.end());
    }
    EXPECT_EQ(seen.size(), lengths.size());
    EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), lengths.size());
  }
}

TEST(Packing, AMillionSequencesTakeNoQuadraticTime) {
  std::mt19937 random(3);
  std::vector<int64_t> lengths(1'000'000);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 4096);
  const auto packs = pack_first_fit_decreasing(lengths, 8192, 64);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  // 11/9 of the optimum (Johnson, 1973), which is at least tokens / size.
  EXPECT_LE(static_cast<double>(packs.size()), 11.0 / 9.0 * static_cast<double>(tokens) / 8192 + 1);
}

TokenSourcePtr documents(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> all;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    all.emplace_back();
    for (int64_t i = 0; i < length; ++i) all.back().push_back(next++ % 1000);
  }
  auto source = make_in_memory("documents of a test", all, 1000);
  EXPECT_TRUE(source.has_value());
  return std::move(*source);
}

TEST(Packing, LongSequencesAreTruncatedDroppedOrRefusedAndCounted) {
  const auto source = documents({5, 1, 12, 9, 30, 2});
  SequenceCuts cuts{.lengths = SequenceLengths::kDocuments, .longest = 8};
  const auto truncated = cut_sequences(*source, cuts);
  ASSERT_TRUE(truncated.has_value());
  std::vector<int64_t> lengths;
  for (const SequenceRange& s : truncated->sequences) lengths.push_back(s.length);
  EXPECT_EQ(lengths, (std::vector<int64_t>{4, 8, 8, 8, 1}));
  EXPECT_EQ(truncated->truncated, 2);
  EXPECT_EQ(truncated->empty, 1);

  cuts.too_long = LongSequences::kDrop;
  const auto dropped = cut_sequences(*source, cuts);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->sequences.size(), 3U);
  EXPECT_EQ(dropped->dropped, 2);

  cuts.too_long = LongSequences::kRefuse;
  const auto refused = cut_sequences(*source, cuts);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().what, "packing.too_long = refuse: sequence 2 has 11 tokens, and train.seq_length allows 8");

  cuts.longest = 0;
  cuts.too_long = LongSequences::kDrop;
  const auto none = cut_sequences(*source, cuts);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().what.find("5 too long and dropped, 1 without a token to predict"), std::string::npos);
}

TEST(Packing, DrawnLengthsFollowTheirDistribution) {
  const auto source = make_synthetic(7, 100, int64_t{1} << 40);
  ASSERT_TRUE(source.has_value());
  for (const SequenceLengths kind : {SequenceLengths::kUniform, SequenceLengths::kLognormal}) {
    const auto cut = cut_sequences(
        **source,
        {.lengths = kind, .longest = int64_t{1} << 30, .mean = 400, .sigma = 0.8, .seed = 5, .most = 200'000});
    ASSERT_TRUE(cut.has_value());
    double sum = 0, logs = 0, log_squares = 0;
    for (const SequenceRange& s : cut->sequences) {
      const auto length = static_cast<double>(s.length);
      sum += length;
      logs += std::log(length);
      log_squares += std::log(length) * std::log(length);
    }
    const auto n = static_cast<double>(cut->sequences.size());
    EXPECT_NEAR(sum / n, 400, 4);
    if (kind == SequenceLengths::kLognormal) {
      EXPECT_NEAR(std::sqrt(log_squares / n - logs / n * logs / n), 0.8, 0.02);
    }
  }
}

TEST(SequenceRows, HoldTokensLabelsStartsAndPadding) {
  auto source = documents({5, 4, 3});
  auto data = SequenceDataset::open(std::move(source), {.lengths = SequenceLengths::kDocuments, .longest = 10},
                                    {.size = 10, .packed = true, .most_sequences = 4});
  ASSERT_TRUE(data.has_value());
  ASSERT_EQ(data->rows(), 1);
  std::vector<int32_t> tokens(10), labels(10), starts(5);
  ASSERT_TRUE(data->row(0, tokens, labels, starts).has_value());
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 7, 9, 10, 0}));
  EXPECT_EQ(labels, (std::vector<int32_t>{1, 2, 3, 4, 6, 7, 8, 10, 11, -1}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 4, 7, 9, 9}));
  EXPECT_DOUBLE_EQ(data->efficiency(), 0.9);
  const RowFacts facts = data->facts(3);
  EXPECT_EQ(facts.sequences, 3);
  EXPECT_EQ(facts.tokens, 9);
  EXPECT_EQ(facts.squares, 16 + 9 + 4);
}

TEST(SequenceRows, PadEverySequenceOfAPackToItsUnit) {
  auto data = SequenceDataset::open(documents({6, 4, 3}), {.lengths = SequenceLengths::kDocuments, .longest = 8},
                                    {.size = 16, .packed = true, .most_sequences = 4, .unit = 4});
  ASSERT_TRUE(data.has_value());
  ASSERT_EQ(data->rows(), 1);
  std::vector<int32_t> tokens(16), labels(16), starts(5);
  ASSERT_TRUE(data->row(0, tokens, labels, starts).has_value());
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 0, 0, 6, 7, 8, 0, 10, 11, 0, 0}));
  EXPECT_EQ(labels, (std::vector<int32_t>{1, 2, 3, 4, 5, -1, -1, -1, 7, 8, 9, -1, 11, 12, -1, -1}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 8, 12, 16, 16}));
  EXPECT_DOUBLE_EQ(data->efficiency(), 10.0 / 16);
  EXPECT_EQ(data->facts(0).squares, 25 + 9 + 4);
}

TEST(SequenceRows, PairsOfAnEncoderDecoderLieInTwoRows) {
  const SequenceCuts cuts{.lengths = SequenceLengths::kDocuments, .longest = 6, .longest_encoder = 3};
  auto data = SequenceDataset::open(documents({7, 2, 4, 30}), cuts,
                                    {.size = 12, .packed = true, .most_sequences = 3, .encoder_size = 8});
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->cut().empty, 1) << "one token cannot be encoded and predicted";
  EXPECT_EQ(data->cut().truncated, 1);
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const SequenceRange& range : data->cut().sequences) parts.emplace_back(range.encoder, range.length);
  EXPECT_EQ(parts, (std::vector<std::pair<int64_t, int64_t>>{{2, 4}, {1, 2}, {3, 6}}));
  ASSERT_EQ(data->rows(), 1);
  std::vector<int32_t> tokens(12), labels(12), starts(4), encoder(8), encoder_starts(4);
  ASSERT_TRUE(data->row(0, tokens, labels, starts).has_value());
  ASSERT_TRUE(data->encoder_row(0, encoder, encoder_starts).has_value());
  EXPECT_EQ(encoder, (std::vector<int32_t>{13, 14, 15, 0, 1, 9, 0, 0}));
  EXPECT_EQ(encoder_starts, (std::vector<int32_t>{0, 3, 5, 6}));
  EXPECT_EQ(tokens, (std::vector<int32_t>{16, 17, 18, 19, 20, 21, 2, 3, 4, 5, 10, 11}));
  EXPECT_EQ(labels, (std::vector<int32_t>{17, 18, 19, 20, 21, 22, 3, 4, 5, 6, 11, 12}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 6, 10, 12}));
  EXPECT_DOUBLE_EQ(data->efficiency(), 18.0 / 20);
}

TEST(Packing, EncodersPartsAreWholeUnits) {
  const auto source = documents({4, 5, 6, 9, 12, 13, 16, 21, 22, 40});
  const SequenceCuts cuts{.lengths = SequenceLengths::kDocuments, .longest = 12, .longest_encoder = 8};
  const auto cut = cut_sequences(*source, cuts, 4);
  ASSERT_TRUE(cut.has_value());
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const SequenceRange& range : cut->sequences) parts.emplace_back(range.encoder, range.length);
  EXPECT_EQ(parts, (std::vector<std::pair<int64_t, int64_t>>{
                       {4, 1}, {4, 4}, {4, 7}, {4, 8}, {4, 11}, {8, 12}, {8, 12}, {8, 12}}));
  EXPECT_EQ(cut->empty, 2) << "three and four tokens: one for the decoder leaves no four for the encoder";
  EXPECT_EQ(cut->truncated, 2);
}

TEST(SequenceRows, EveryEpochHoldsEveryRowOnce) {
  for (const bool packed : {false, true}) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 60; ++i) lengths.push_back(2 + i * 7 % 19);
    auto data = SequenceDataset::open(documents(lengths), {.lengths = SequenceLengths::kDocuments, .longest = 24},
                                      {.size = 24, .packed = packed});
    ASSERT_TRUE(data.has_value());
    for (const int64_t epoch : {0, 1, 5}) {
      std::multiset<int32_t> labels_seen;
      for (int64_t r = 0; r < data->rows(); ++r) {
        std::vector<int32_t> labels(24);
        ASSERT_TRUE(data->row(epoch * data->rows() + r, {}, labels, {}).has_value());
        for (const int32_t label : labels)
          if (label >= 0) labels_seen.insert(label);
      }
      const int64_t wanted = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) - 60;
      EXPECT_EQ(static_cast<int64_t>(labels_seen.size()), wanted);
      EXPECT_EQ(std::set<int32_t>(labels_seen.begin(), labels_seen.end()).size(), labels_seen.size());
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
