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
// Row tiles that follow each other before the column changes: a group's rows stay in L2 while columns pass by once.
inline constexpr int kGroupedHeight = 16;

// FP8 operands: as many bytes of the reduction are twice as deep. A sum that is kept in fp32 beside the tensor cores'
// own, step by step, takes registers: tiles are narrower, stages smaller and more.
inline constexpr int kGroupedFp8Depth = 128;
constexpr int grouped_fp8_columns(bool fast) {
  return fast ? kGroupedColumns : kGroupedColumns / 2;
}
constexpr int grouped_fp8_stages(bool fast) {
  return fast ? 4 : 6;
}
constexpr int grouped_fp8_stage_bytes(bool fast) {
  return (kGroupedRows + grouped_fp8_columns(fast)) * kGroupedFp8Depth;
}

constexpr int grouped_tiles(int64_t rows, int64_t columns, int tile_columns = kGroupedColumns) {
  return static_cast<int>((rows + kGroupedRows - 1) / kGroupedRows * ((columns + tile_columns - 1) / tile_columns));
}

struct GroupedTile {
  int row = 0, column = 0;  // the first of the tile
};

// Tile `index` of the grouped_tiles(rows, columns) of one expert's result.
constexpr GroupedTile grouped_tile(int64_t rows, int64_t columns, int index, int tile_columns = kGroupedColumns) {
  const int row_tiles = static_cast<int>((rows + kGroupedRows - 1) / kGroupedRows);
  const int column_tiles = static_cast<int>((columns + tile_columns - 1) / tile_columns);
  const int group = index / (kGroupedHeight * column_tiles), inside = index - group * kGroupedHeight * column_tiles;
  const int left = row_tiles - group * kGroupedHeight, height = left < kGroupedHeight ? left : kGroupedHeight;
  return {(group * kGroupedHeight + inside % height) * kGroupedRows, inside / height * tile_columns};
}

enum class GroupedForm { kFprop, kDgrad, kWgrad };
const char* name(GroupedForm form);

// `rows` of a buffer over all experts, weights [experts, n, k]. Persistent blocks, fewer where the worst split of the
// rows has fewer tiles.
KernelPlan plan_grouped(GroupedForm form, int64_t rows, int64_t experts, int64_t n, int64_t k, Sms sms);
// The same of FP8 codes; `fast`: sums in the tensor cores' own width.
KernelPlan plan_grouped_fp8(GroupedForm form, bool fast, int64_t rows, int64_t experts, int64_t n, int64_t k, Sms sms);

// A dense product with SwiGLU in its epilogue (gated_wgmma.h): w of [2 ffn, hidden] and its gate, or the gradient of
// [hidden, ffn] and that of the gate.
struct GatedGemm {
  int64_t tokens = 0, hidden = 0, ffn = 0;
};
KernelPlan plan_gated(bool forward, const GatedGemm& shape, Sms sms);

}  // namespace mbb::trainer::cuda
