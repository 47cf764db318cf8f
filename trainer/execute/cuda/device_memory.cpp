// Asynchronous copies and the reduction kernel; settling waits for the stream.
#include "trainer/execute/cuda/device_memory.h"

#include <fmt/core.h>

#include "trainer/ops/cuda/comm_kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {

Status DeviceMemory::settle() {
  return ok(cudaStreamSynchronize(device_.stream()), "meeting the other ranks");
}

Status DeviceMemory::copy(void* to, const void* from, size_t bytes) {
  return ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.stream()), "copying between ranks");
}

Status DeviceMemory::reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                            std::span<void* const> outputs, size_t begin, size_t end) {
  return reduce_members(dtype, op, inputs, outputs, static_cast<int64_t>(begin), static_cast<int64_t>(end),
                        device_.launch());
}

Status reach_devices(int device, int count) {
  for (int peer = 0; peer < count; ++peer) {
    if (peer == device) continue;
    int possible = 0;
    MB_TRY(ok(cudaDeviceCanAccessPeer(&possible, device, peer), "asking for peer access"));
    if (possible == 0)
      return fail(ErrorCode::kUnavailable, fmt::format("device {} cannot reach the memory of device {}", device, peer),
                  "let the ranks share one device (CUDA_VISIBLE_DEVICES), or run them as processes with NCCL");
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
      continue;
    }
    MB_TRY(ok(status, "reaching another device's memory"));
  }
  return {};
}

}  // namespace mbb::trainer::cuda
