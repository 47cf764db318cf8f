// Turns status codes of the CUDA runtime into the project's errors.
#include "trainer/ops/cuda/status.h"

#include <fmt/core.h>

namespace mbb::trainer::cuda {

Status ok(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // it is told here, not by the next launch too; a sticky one stays
  const auto code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable;
  return fail(code, fmt::format("{}: {} ({})", doing, cudaGetErrorString(status), cudaGetErrorName(status)));
}

Status launched(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("launching kernel {}: {} ({})", kernel, cudaGetErrorString(status),
                                                   cudaGetErrorName(status)));
}

}  // namespace mbb::trainer::cuda
