// The tuning file survives a round trip, and refuses what is not its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "trainer/ops/cuda/gemm_tuning.h"

namespace mbb::trainer::cuda {
namespace {

const TuningMachine kMachine{"NVIDIA H100 80GB HBM3", "580.159.04", 130100};

GemmTuning two_choices() {
  GemmTuning tuning(kMachine);
  tuning.set(key(linear_problem(GemmRole::kFprop, 64, 32, 16, false, false)),
             {{1, 2, 3, 4, 5, 6, 7, ~0ull}, 12.5, 14, 9});
  tuning.set(key(linear_problem(GemmRole::kWgrad, 64, 32, 16, true, true)), {{8}, 1.25, 1.25, 1});
  return tuning;
}

TEST(GemmTuning, RoundTrip) {
  const GemmTuning before = two_choices();
  const auto after = GemmTuning::parse(before.text(), kMachine);
  ASSERT_TRUE(after.has_value()) << format(after.error());
  EXPECT_EQ(after->text(), before.text());
  const TunedGemm* found = after->find(key(linear_problem(GemmRole::kFprop, 64, 32, 16, false, false)));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->algorithm, (GemmAlgorithm{1, 2, 3, 4, 5, 6, 7, ~0ull}));
  EXPECT_EQ(found->us, 12.5);
  EXPECT_EQ(after->find("m1 n1 k1 nn bf16 bf16 bf16 beta0"), nullptr);
}

// Every rank goes on with the same choices, whichever it made itself.
TEST(GemmTuning, RanksAgreeOnTheFirstOnesChoice) {
  GemmTuning first(kMachine), second(kMachine);
  first.set("attention", {{1}, 10, 11, 2});
  second.set("attention", {{0}, 9, 9, 2});
  second.set("product", {{5}, 1, 1, 1});
  const GemmTuning other({"NVIDIA H200", "580.159.04", 130100});
  std::vector<std::pair<size_t, Error>> refused;
  const GemmTuning all = GemmTuning::agreed({other.text(), first.text(), second.text()}, kMachine, &refused);
  ASSERT_EQ(all.choices().size(), 2U);
  EXPECT_EQ(all.find("attention")->algorithm[0], 1U);
  EXPECT_EQ(all.find("product")->algorithm[0], 5U);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].first, 0U);
}

// Sets lie inside the memory without touching each other, pass the cache twice, and are the step's own where one does.
TEST(GemmTuning, BuffersTakeTurnsWhereACacheWouldHoldThem) {
  std::vector<std::byte> memory(1 << 20);
  GemmBuffers own;
  own.workspace = &own;
  for (const bool residual : {false, true}) {
    GemmProblem p = linear_problem(GemmRole::kFprop, 64, 33, 16, false, false);
    p.add_c = residual;
    const std::vector<GemmBuffers> sets = rotated(p, own, memory, 40000);
    const int64_t set = 4352 + 1280 + 2048 * (residual ? 2 : 1);
    ASSERT_EQ(static_cast<int64_t>(sets.size()), 80000 / set + 1);
    std::vector<std::pair<const std::byte*, int64_t>> all;
    for (const GemmBuffers& s : sets) {
      EXPECT_EQ(s.workspace, own.workspace);
      all.emplace_back(static_cast<const std::byte*>(s.a), 64 * 33 * 2);
      all.emplace_back(static_cast<const std::byte*>(s.b), 33 * 16 * 2);
      all.emplace_back(static_cast<const std::byte*>(s.d), 64 * 16 * 2);
      if (residual) all.emplace_back(static_cast<const std::byte*>(s.c), 64 * 16 * 2);
    }
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) {
      const auto* const end = i + 1 < all.size() ? all[i + 1].first : memory.data() + memory.size();
      EXPECT_LE(all[i].first + all[i].second, end) << i;
      EXPECT_EQ((all[i].first - memory.data()) % 256, 0) << i;
    }
    EXPECT_EQ(rotated(p, own, memory, 1000).size(), 1U) << "one set passes the cache";
    EXPECT_EQ(rotated(p, own, std::span(memory).first(static_cast<size_t>(2 * set - 1)), 40000).size(), 1U);
    EXPECT_EQ(rotated(p, own, {}, 40000).front().workspace, own.workspace);
  }
}

// A product of blocks is a problem of its own by how each side is cut. All sets read the step's scales: in a step they
// come right before the product, and lie in the cache.
TEST(GemmTuning, ProductsOfBlocksHaveKeysAndScales) {
  GemmProblem p = linear_problem(GemmRole::kFprop, 256, 512, 384, true, false);
  p.fast_accumulation = false;
  const std::string whole = key(p);
  p.a_blocks = BlockScaling::kRows, p.b_blocks = BlockScaling::kSquare;
  EXPECT_EQ(key(p), whole + " blocks 1x128·128x128");
  GemmTuning tuning(kMachine);
  tuning.set(key(p), {{3}, 2, 3, 8});
  const auto read = GemmTuning::parse(tuning.text(), kMachine);
  ASSERT_TRUE(read.has_value()) << format(read.error());
  EXPECT_NE(read->find(key(p)), nullptr);
  EXPECT_EQ(read->find(whole), nullptr);
  p.b_blocks = BlockScaling::kRows;
  EXPECT_EQ(read->find(key(p)), nullptr);

  const std::array<float, 2> scales{};
  GemmBuffers own;
  own.a_scale = scales.data(), own.b_scale = scales.data() + 1;
  std::vector<std::byte> memory(2 << 20);
  const std::vector<GemmBuffers> sets = rotated(p, own, memory, 1 << 20);
  EXPECT_GT(sets.size(), 2U);
  for (const GemmBuffers& set : sets) {
    EXPECT_EQ(set.a_scale, own.a_scale);
    EXPECT_EQ(set.b_scale, own.b_scale);
    EXPECT_NE(set.a, nullptr);
  }
}

TEST(GemmTuning, RefusesAnotherMachine) {
  for (const TuningMachine& other :
       {TuningMachine{"NVIDIA H200", "580.159.04", 130100}, TuningMachine{"NVIDIA H100 80GB HBM3", "580.95.05", 130100},
        TuningMachine{"NVIDIA H100 80GB HBM3", "580.159.04", 130200}}) {
    const auto read = GemmTuning::parse(two_choices().text(), other);
    ASSERT_FALSE(read.has_value());
    EXPECT_NE(read.error().what.find(other.device), std::string::npos);
    EXPECT_NE(read.error().hint.find("mbbench tune"), std::string::npos);
  }
}

TEST(GemmTuning, RefusesWhatItDoesNotUnderstand) {
  EXPECT_FALSE(GemmTuning::parse("", kMachine).has_value());
  EXPECT_FALSE(GemmTuning::parse("something else\n", kMachine).has_value());
  std::string cut = two_choices().text();
  cut.resize(cut.size() - 8);
  const auto read = GemmTuning::parse(cut, kMachine);
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().what.find("line 6"), std::string::npos) << read.error().what;
}

}  // namespace
}  // namespace mbb::trainer::cuda
