// Turns status codes of the CUDA runtime into the project's errors, saying what we were doing.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer::cuda {

// ok() of a runtime call: "copying the step record: an illegal memory access was encountered
// (cudaErrorIllegalAddress)". What it tells it clears, so that no later launch is blamed for it.
Status ok(cudaError_t status, const char* doing);

// Call after each launch: reads (and clears) the launch error; a sticky error stays and comes back with the next call.
Status launched(const char* kernel);

}  // namespace mbb::trainer::cuda
