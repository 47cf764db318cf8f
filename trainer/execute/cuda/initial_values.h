// Random normals, and first values of weights and of what is kept of them beside (first_state.h), made on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "profiler/base/error.h"
#include "trainer/execute/first_state.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// data[i] = stddev * normal(0, first + i) of the stream with this key, for i in [0, count).
Status fill_normal(Element element, void* data, int64_t first, int64_t count, uint64_t key, float stddev,
                   cudaStream_t stream);

// By kernels on a stream.
class DeviceStores final : public FirstStores {
 public:
  explicit DeviceStores(cudaStream_t stream) : stream_(stream) {}
  Status plain(const FirstRange& range, DType dtype, std::byte* to) override;
  Status split(const FirstRange& range, std::byte* weight, std::byte* remainder) override;
  Status amax(const FirstRange& range, bool as_bf16, float* amax) override;
  Status fp8(const FirstRange& range, const float* amax, bool delayed, std::byte* to) override;
  Status fp8_inverse(const float* amax, bool delayed, float* inverse) override;
  Status fp16(const FirstRange& range, const float* amax, std::byte* to) override;
  Status fp16_inverse(float* amax) override;

 private:
  cudaStream_t stream_;
};

}  // namespace mbb::trainer::cuda
