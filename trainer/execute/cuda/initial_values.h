// First values of weights, made on the device by the same random numbers as initial_state.h makes on the host.
#pragma once

#include <cuda_runtime_api.h>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// data[i] = stddev * normal(0, first + i) of the stream with this key, for i in [0, count).
Status fill_normal(Element element, void* data, int64_t first, int64_t count, uint64_t key, float stddev,
                   cudaStream_t stream);

}  // namespace mbb::trainer::cuda
