// Launch of grouped matrix products on Hopper's warpgroup instructions.
#pragma once

#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/grouped_tiles.h"

namespace mbb::trainer::cuda {

// Only where grouped_on_hopper(): bf16, n and k multiples of 8, addresses multiples of 16, compute capability 9.0.
// left and right: x and w (fprop), dy and w (dgrad), dy and x (wgrad). out: bf16, of wgrad args.gradient and added to
// when `accumulate`.
Status grouped_wgmma(GroupedForm form, const GroupedGemm& args, const void* left, const void* right, void* out,
                     bool accumulate, const Launch& launch);

// Products of FP8 codes under a scale a tensor (args.a_scale and b_scale) or scales of blocks. Left and right have the
// reduction innermost: x [rows, k] and w [experts, n, k]; dy [rows, n] and w [k, experts * n]; dy [n, rows] and x [k,
// rows]. Blocks are 1 x 128 of rows, across the buffer, and 128 x 128 of each expert's weights, fp32 tables of lines by
// places across (block_table.h).
struct GroupedFp8 {
  GroupedGemm g;
  Element left = Element::kE4m3, right = Element::kE4m3;
  bool fast = false;  // sums in the tensor cores' own width: fprop alone, under a scale a tensor
  const float *left_blocks = nullptr, *right_blocks = nullptr;  // both or neither
};
// n, k and, of wgrad, rows in sixteens, addresses too; the right operand in E4M3; compute capability 9.0.
bool grouped_fp8_takes(GroupedForm form, const GroupedFp8& args, std::initializer_list<const void*> addresses);
Status grouped_fp8(GroupedForm form, const GroupedFp8& args, const void* left, const void* right, void* out,
                   bool accumulate, const Launch& launch);

// Rows of y [rows, columns] bf16 that no expert fills become zero.
Status clear_unfilled(const GroupedGemm& args, int64_t columns, void* y, const Launch& launch);

}  // namespace mbb::trainer::cuda
