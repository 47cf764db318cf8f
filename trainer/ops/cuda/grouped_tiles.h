// Tiles of grouped matrix products on Hopper's tensor cores, and the order in which blocks take them: pure, shared by
// the kernel, its launch and its tests.
#pragma once

#include <cstdint>

#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// A block's two warpgroups multiply 64 x 256 each; a third moves data through the stages.
inline constexpr int kGroupedRows = 128, kGroupedColumns = 256, kGroupedDepth = 64, kGroupedStages = 4;
inline constexpr int kGroupedThreads = 3 * 128;
inline constexpr int kGroupedStageBytes = (kGroupedRows + kGroupedColumns) * kGroupedDepth * 2;
// Rows whose tiles follow each other before the column changes: they stay in L2 while columns pass by once.
inline constexpr int kGroupedHeight = 2048;

// Two blocks of a cluster take tiles beside each other and read what both need once: the left operand's rows where the
// tiles lie in a row, the right operand's where they lie in a column.
enum class GroupedShare { kNone, kLeft, kRight };

// What one block, or one cluster, takes at a time.
struct GroupedSpan {
  int rows = kGroupedRows, columns = kGroupedColumns;
};
constexpr GroupedSpan grouped_span(GroupedShare share) {
  return {share == GroupedShare::kRight ? 2 * kGroupedRows : kGroupedRows,
          share == GroupedShare::kLeft ? 2 * kGroupedColumns : kGroupedColumns};
}

constexpr int grouped_tiles(int64_t rows, int64_t columns, GroupedSpan span = {}) {
  return static_cast<int>((rows + span.rows - 1) / span.rows * ((columns + span.columns - 1) / span.columns));
}

struct GroupedTile {
  int row = 0, column = 0;  // the first of the tile
};

// Tile `index` of the grouped_tiles(rows, columns, span) of one expert's result.
constexpr GroupedTile grouped_tile(int64_t rows, int64_t columns, int index, GroupedSpan span = {}) {
  const int row_tiles = static_cast<int>((rows + span.rows - 1) / span.rows);
  const int column_tiles = static_cast<int>((columns + span.columns - 1) / span.columns);
  const int most = kGroupedHeight / span.rows;
  const int group = index / (most * column_tiles), inside = index - group * most * column_tiles;
  const int left = row_tiles - group * most, height = left < most ? left : most;
  return {(group * most + inside % height) * span.rows, inside / height * span.columns};
}

enum class GroupedForm { kFprop, kDgrad, kWgrad };
const char* name(GroupedForm form);

// `rows` of a buffer over all experts, weights [experts, n, k]. Persistent blocks, fewer where the worst split of the
// rows has fewer tiles.
KernelPlan plan_grouped(GroupedForm form, GroupedShare share, int64_t rows, int64_t experts, int64_t n, int64_t k,
                        Sms sms);
// What saves most traffic without idle blocks: experts' rows end anywhere, so they are never paired.
GroupedShare grouped_share(GroupedForm form, int64_t n, int64_t k);

}  // namespace mbb::trainer::cuda
