// Rows of packs: every token on one rank, sequences divided evenly, and gathered rows rank after rank.
#include "trainer/program/packed_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace mbb::trainer {
namespace {

TEST(PackedRows, WholePackCountsFromEachStart) {
  const std::vector<int32_t> starts{0, 3, 5, 8, 8};
  const std::vector<PackedRow> rows = packed_rows({}, starts, 10);
  const int64_t sequence[] = {0, 0, 0, 1, 1, 2, 2, 2, 4, 4}, position[] = {0, 1, 2, 0, 1, 0, 1, 2, 0, 1};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].sequence, sequence[i]) << i;
    EXPECT_EQ(rows[i].position(), position[i]) << i;
    EXPECT_EQ(rows[i].at, static_cast<int64_t>(i));
  }
}

TEST(PackedRows, EveryRankHoldsTheSameWorkOfEverySequence) {
  std::mt19937 random(std::random_device{}());
  for (const int ranks : {2, 3, 4}) {
    const int64_t unit = 2 * ranks, size = 20 * unit;
    std::vector<int32_t> starts{0};
    while (starts.back() < size - 6 * unit)
      starts.push_back(starts.back() + static_cast<int32_t>(unit * (1 + static_cast<int64_t>(random() % 5))));
    starts.push_back(starts.back());  // room that is not used
    std::set<int64_t> seen;
    std::vector<std::map<int64_t, int64_t>> work(static_cast<size_t>(ranks));  // keys that a sequence's rows see
    const std::vector<PackedRow> gathered = packed_rows(group_positions(size, ranks, 0, ranks), starts, size);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rows = packed_rows(context_positions(size, ranks, rank), starts, size / ranks);
      int64_t before = -1;
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_TRUE(seen.insert(rows[i].at).second);
        EXPECT_GT(rows[i].at, before) << "rows ascend";
        before = rows[i].at;
        work[static_cast<size_t>(rank)][rows[i].sequence] += 2 * rows[i].position() + 1;
        const PackedRow& same = gathered[static_cast<size_t>(rank) * rows.size() + i];
        EXPECT_EQ(same.at, rows[i].at);
        EXPECT_EQ(same.sequence, rows[i].sequence);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
    for (const auto& each : work) EXPECT_EQ(each, work[0]);
  }
}

TEST(PackedRows, OneSequenceIsAsWithoutAPack) {
  const std::vector<int32_t> starts{0, 48};
  const Positions mine = context_positions(48, 3, 1);
  const auto rows = packed_rows(mine, starts, 16);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].at, mine.at(static_cast<int64_t>(i)));
}

}  // namespace
}  // namespace mbb::trainer
