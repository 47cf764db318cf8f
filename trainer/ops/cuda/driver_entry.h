// Functions of the CUDA driver, found at run time, so that nothing links libcuda, which only a machine with a GPU has.
#pragma once

#include <cuda_runtime_api.h>

namespace mbb::trainer::cuda {

// The driver's function `name` as of CUDA `version` (12000: 12.0), or null where the driver has none.
template <typename Function>
Function driver_entry(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  const bool asked = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &answer) == cudaSuccess;
  return asked && answer == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(entry) : nullptr;
}

}  // namespace mbb::trainer::cuda
