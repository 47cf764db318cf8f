// Tiles of grouped matrix products: each place of the result belongs to one tile, for any shape.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "trainer/ops/cuda/grouped_tiles.h"

namespace mbb::trainer::cuda {
namespace {

TEST(GroupedTiles, EachTileOnceAndRowsFirst) {
  for (const int64_t rows : {1, 64, 128, 129, 2048, 2049, 5000})
    for (const int64_t columns : {8, 256, 264, 28672}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      std::set<std::pair<int, int>> seen;
      const int count = grouped_tiles(rows, columns);
      for (int i = 0; i < count; ++i) {
        const GroupedTile tile = grouped_tile(rows, columns, i);
        EXPECT_TRUE(tile.row >= 0 && tile.row < rows && tile.row % kGroupedRows == 0) << i;
        EXPECT_TRUE(tile.column >= 0 && tile.column < columns && tile.column % kGroupedColumns == 0) << i;
        seen.emplace(tile.row, tile.column);
      }
      EXPECT_EQ(static_cast<int>(seen.size()), count);
      EXPECT_EQ(count, (rows + 127) / 128 * ((columns + 255) / 256));
    }
  // A new column begins only when the group's rows are done.
  EXPECT_EQ(grouped_tile(5000, 1024, 15).row, 15 * 128);
  EXPECT_EQ(grouped_tile(5000, 1024, 16).row, 0);
  EXPECT_EQ(grouped_tile(5000, 1024, 16).column, 256);
  EXPECT_EQ(grouped_tile(5000, 1024, 64).row, 16 * 128);
}

TEST(GroupedTiles, PlanIsPersistentAndFitsTheMultiprocessor) {
  const KernelPlan wide = plan_grouped(GroupedForm::kFprop, 8192, 8, 28672, 4096, {132, 0});
  EXPECT_EQ(wide.grid_x, 132);
  EXPECT_LE(wide.smem_bytes, 227 * 1024);
  // Two experts may hold two tiles of the one column each.
  EXPECT_EQ(plan_grouped(GroupedForm::kDgrad, 200, 2, 64, 256, {132, 0}).grid_x, 3);
  EXPECT_EQ(plan_grouped(GroupedForm::kWgrad, 200, 2, 64, 256, {132, 0}).grid_x, 2);
  EXPECT_EQ(wide.bytes, 2 * 8192 * (28672 + 4096) + 2 * int64_t{8} * 28672 * 4096);
  EXPECT_EQ(format(plan_grouped(GroupedForm::kWgrad, 8192, 8, 4096, 14336, {132, 0})).substr(0, 42),
            "grouped_wgrad grid 132x1 block 384 vectors");
}

TEST(GroupedTiles, PlanOfCodesFitsTheMultiprocessorAndCountsBytes) {
  for (const bool fast : {false, true}) {
    const KernelPlan wide = plan_grouped_fp8(GroupedForm::kFprop, fast, 8192, 8, 28672, 4096, {132, 0});
    EXPECT_EQ(wide.grid_x, 132);
    EXPECT_LE(wide.smem_bytes, 227 * 1024);
    EXPECT_EQ(wide.bytes, int64_t{8192} * (2 * 28672 + 4096) + int64_t{8} * 28672 * 4096);
    // Two experts, three row tiles at most, 256 columns in one tile or two.
    EXPECT_EQ(plan_grouped_fp8(GroupedForm::kDgrad, fast, 200, 2, 64, 256, {132, 0}).grid_x, fast ? 3 : 6);
  }
  EXPECT_EQ(grouped_tile(5000, 1024, 16, grouped_fp8_columns(false)).column, 128);
}

TEST(GatedTiles, PlanIsPersistentAndCountsWhatMoves) {
  const KernelPlan wide = plan_gated(true, {8192, 4096, 14336}, {132, 0});
  EXPECT_EQ(wide.grid_x, 132);
  EXPECT_LE(wide.smem_bytes, 227 * 1024);
  EXPECT_EQ(wide.bytes, int64_t{2} * (8192 * (4096 + 3 * 14336) + 2 * 4096 * 14336));
  EXPECT_EQ(plan_gated(false, {8192, 4096, 14336}, {132, 4}).grid_x, 128);
  // 2 x 1 tiles of 128 tokens x 128 pairs; of 256 gradients.
  EXPECT_EQ(plan_gated(true, {200, 64, 128}, {132, 0}).grid_x, 2);
  EXPECT_EQ(plan_gated(false, {200, 64, 264}, {132, 0}).grid_x, 4);
}

}  // namespace
}  // namespace mbb::trainer::cuda
