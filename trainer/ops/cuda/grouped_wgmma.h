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

}  // namespace mbb::trainer::cuda
