// Chunks of context parallelism: every position once, and the same work for every rank.
#include "trainer/program/positions.h"

#include <gtest/gtest.h>

#include <set>

namespace mbb::trainer {
namespace {

TEST(Positions, EveryPositionBelongsToOneRank) {
  for (int size : {2, 3, 4, 8}) {
    const int64_t sequence = 10 * size;
    std::set<int64_t> seen;
    for (int index = 0; index < size; ++index) {
      const Positions mine = context_positions(sequence, size, index);
      int64_t before = -1;
      for (int64_t row = 0; row < sequence / size; ++row) {
        EXPECT_GT(mine.at(row), before) << "rows ascend";
        before = mine.at(row);
        EXPECT_TRUE(seen.insert(before).second);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(sequence));
    EXPECT_EQ(*seen.rbegin(), sequence - 1);
  }
  EXPECT_EQ(context_positions(40, 1, 0).at(17), 17);
}

TEST(Positions, GatheringPutsRankAfterRank) {
  const Positions all = gathered_positions(24, 3);
  for (int index = 0; index < 3; ++index)
    for (int64_t row = 0; row < 8; ++row) EXPECT_EQ(all.at(index * 8 + row), context_positions(24, 3, index).at(row));
  EXPECT_EQ(all.rows(8, 4).at(1), all.at(9));
}

TEST(Positions, CausalWorkIsEqualAndAddsUp) {
  for (int size : {2, 4}) {
    double sum = 0;
    for (int index = 0; index < size; ++index) {
      const double pairs =
          visible_pairs(context_positions(64, size, index), 64 / size, gathered_positions(64, size), 64, 0);
      EXPECT_DOUBLE_EQ(pairs, 64.0 * 64.0 / 2 / size);
      sum += pairs;
    }
    EXPECT_DOUBLE_EQ(sum, visible_pairs({}, 64, {}, 64, 0));
  }
  EXPECT_DOUBLE_EQ(visible_pairs({}, 64, {}, 64, 0), 0.5 * 64 * 64);
}

TEST(Positions, AWindowCountsEachPairOnce) {
  const auto counted = [](int size, int64_t window) {
    double pairs = 0;
    for (int index = 0; index < size; ++index)
      pairs += visible_pairs(context_positions(48, size, index), 48 / size, gathered_positions(48, size), 48, window);
    return pairs;
  };
  for (int64_t window : {1, 5, 30}) {
    const auto w = static_cast<double>(window);
    EXPECT_DOUBLE_EQ(counted(1, window), w * 48 - w * (w - 1) / 2);
    EXPECT_DOUBLE_EQ(counted(4, window), counted(1, window));
  }
}

}  // namespace
}  // namespace mbb::trainer
