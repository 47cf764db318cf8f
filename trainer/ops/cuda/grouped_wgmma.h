// Grouped matrix products on Hopper's warpgroup instructions: which calls they take, and the launch.
#pragma once

#include <initializer_list>

#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/grouped_tiles.h"

namespace mbb::trainer::cuda {

// bf16, n and k multiples of 8, addresses multiples of 16, and a current device of compute capability 9.0.
bool on_wgmma(const GroupedGemm& args, std::initializer_list<const void*> addresses);

// left and right: x and w (fprop), dy and w (dgrad), dy and x (wgrad). out: bf16, of wgrad fp32 and added to when
// `accumulate`.
Status grouped_wgmma(GroupedForm form, const GroupedGemm& args, const void* left, const void* right, void* out,
                     bool accumulate, const Launch& launch);

}  // namespace mbb::trainer::cuda
