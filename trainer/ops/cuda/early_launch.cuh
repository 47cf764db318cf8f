// Launches that may start before the one before them in their stream is done: that one lets them, they wait.
#pragma once

#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {

__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_launch_before() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

template <typename... Of, typename... Args>
Status start_early(const char* name, void (*kernel)(Of...), dim3 grid, int block, cudaStream_t stream, Args... args) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(static_cast<unsigned>(block));
  config.stream = stream, config.attrs = &early, config.numAttrs = 1;
  return ok(cudaLaunchKernelEx(&config, kernel, static_cast<Of>(args)...), name);
}

}  // namespace mbb::trainer::cuda
