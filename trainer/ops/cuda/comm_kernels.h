// Sums and maxima over the buffers of several ranks that one device reaches, for ranks that share it.
#pragma once

#include <span>

#include "trainer/comm/communicator.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Buffers a call takes at most.
inline constexpr size_t kMostMembers = 64;

// Elements [begin, end) of every output become the reduction of the inputs', in their order: f32 and bf16 sums
// accumulate in f64 and round once, integers wrap, a maximum with a NaN is NaN. An output may be an input.
Status reduce_members(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                      int64_t begin, int64_t end, const Launch& launch);

}  // namespace mbb::trainer::cuda
