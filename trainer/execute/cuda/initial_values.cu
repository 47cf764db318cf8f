// Counter-based normals on the device.
#include "trainer/execute/cuda/initial_values.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"
#include "trainer/precision/states.h"

namespace mbb::trainer::cuda {
namespace {

// The pair of Box-Muller's normals that two words make, by the host's formula in double.
__device__ __forceinline__ float normal_of_words(uint32_t even, uint32_t odd, bool second) {
  const double u = (static_cast<double>(even) + 0.5) * 0x1p-32;
  const double phi = 6.283185307179586476925 * (static_cast<double>(odd) * 0x1p-32);
  const double radius = sqrt(-2.0 * log(u));
  return static_cast<float>(second ? radius * sin(phi) : radius * cos(phi));
}

__device__ __forceinline__ PhiloxBlock block_of(uint64_t index, uint64_t key) {
  return philox4x32({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                    static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

template <typename T>
__device__ __forceinline__ T rounded_to(float x) {
  return from_float<T>(x);
}
template <>
__device__ __forceinline__ __nv_fp8_e4m3 rounded_to<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}
template <>
__device__ __forceinline__ __nv_fp8_e5m2 rounded_to<__nv_fp8_e5m2>(float x) {
  return __nv_fp8_e5m2(x);
}

// A thread makes the four elements of a Philox block and keeps those inside the range.
template <typename T>
__global__ void fill_normal_kernel(T* data, int64_t first, int64_t count, uint64_t key, float stddev) {
  const int64_t end = (first + count + 3) / 4, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t block = first / 4 + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; block < end; block += stride) {
    const PhiloxBlock words = block_of(static_cast<uint64_t>(block), key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = block * 4 + i - first;
      if (at < 0 || at >= count) continue;
      data[at] = rounded_to<T>(stddev * normal_of_words(words.word[i & ~1], words.word[i | 1], (i & 1) != 0));
    }
  }
}

// An element alone: its place in the whole may be far from its neighbour's.
__device__ __forceinline__ float first_value(const FirstValues& values, int64_t local) {
  if (!values.random) return values.constant;
  const auto at = static_cast<uint64_t>(values.places(local));
  const PhiloxBlock words = block_of(at / 4, values.key);
  const bool high = (at & 2) != 0;
  return values.stddev *
         normal_of_words(high ? words.word[2] : words.word[0], high ? words.word[3] : words.word[1], (at & 1) != 0);
}

__device__ __forceinline__ float fp8_scale(float amax, bool delayed) {
  if (delayed || !(amax > 0.0f) || isinf(amax)) return 1.0f;
  const float scale = 448.0f / amax;
  return isinf(scale) ? __uint_as_float(0x7f7f0000u) : scale;  // the largest bf16
}

__device__ __forceinline__ float fp16_scale(float amax) {
  return amax > 0.0f ? kFp16Max / amax : 1.0f;
}

struct ToF32 {
  float* to;
  __device__ void operator()(int64_t i, float value) const { to[i] = value; }
};
struct ToBf16 {
  bf16* to;
  __device__ void operator()(int64_t i, float value) const { to[i] = from_float<bf16>(value); }
};
struct ToSplit {
  uint16_t *weight, *remainder;
  __device__ void operator()(int64_t i, float value) const {
    const SplitMaster split = split_master(value);
    if (weight != nullptr) weight[i] = split.weight.bits;
    if (remainder != nullptr) remainder[i] = split.remainder;
  }
};
struct ToFp8 {
  uint8_t* to;
  const float* amax;
  bool delayed;
  __device__ void operator()(int64_t i, float value) const {
    to[i] = __nv_cvt_float_to_fp8(rounded<bf16>(value) * fp8_scale(*amax, delayed), __NV_SATFINITE, __NV_E4M3);
  }
};
struct ToF16 {
  __half* to;
  const float* amax;
  __device__ void operator()(int64_t i, float value) const { to[i] = __float2half_rn(value * fp16_scale(*amax)); }
};

template <typename Store>
__global__ void each_first_value(FirstValues values, int64_t first, int64_t count, Store store) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    store(i, first_value(values, first + i));
}

__global__ void first_amax_kernel(FirstValues values, int64_t first, int64_t count, bool as_bf16, float* amax) {
  float top = 0.0f;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float value = first_value(values, first + i);
    top = fmaxf(top, fabsf(as_bf16 ? rounded<bf16>(value) : value));
  }
  top = warp_max(top);
  // Bits of numbers that are not negative are in their order.
  if ((threadIdx.x & 31) == 0) atomicMax(reinterpret_cast<unsigned int*>(amax), __float_as_uint(top));
}

__global__ void fp8_inverse_kernel(const float* amax, bool delayed, float* inverse) {
  *inverse = 1.0f / fp8_scale(*amax, delayed);
}

__global__ void fp16_inverse_kernel(float* amax) {
  *amax = 1.0f / fp16_scale(*amax);
}

constexpr int kThreads = 256;
unsigned grid_of(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, 4224));
}

template <typename Store>
Status each(const FirstRange& range, const Store& store, cudaStream_t stream) {
  if (range.count == 0) return {};
  each_first_value<<<grid_of(range.count), kThreads, 0, stream>>>(range.values, range.first, range.count, store);
  return launched("first_values");
}

}  // namespace

Status fill_normal(Element element, void* data, int64_t first, int64_t count, uint64_t key, float stddev,
                   cudaStream_t stream) {
  const auto fill = [&](auto* to) { fill_normal_kernel<<<2112, 256, 0, stream>>>(to, first, count, key, stddev); };
  switch (element) {
    case Element::kF32: fill(static_cast<float*>(data)); break;
    case Element::kBf16: fill(static_cast<bf16*>(data)); break;
    case Element::kE4m3: fill(static_cast<__nv_fp8_e4m3*>(data)); break;
    case Element::kE5m2: fill(static_cast<__nv_fp8_e5m2*>(data)); break;
  }
  return launched("fill_normal");
}

Status DeviceStores::plain(const FirstRange& range, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) return each(range, ToF32{reinterpret_cast<float*>(to)}, stream_);
  if (dtype == DType::kBf16) return each(range, ToBf16{reinterpret_cast<bf16*>(to)}, stream_);
  return fail(ErrorCode::kUnavailable, std::string("CUDA: first values of ") + std::string(name(dtype)),
              "use host.device = cpu");
}

Status DeviceStores::split(const FirstRange& range, std::byte* weight, std::byte* remainder) {
  return each(range, ToSplit{reinterpret_cast<uint16_t*>(weight), reinterpret_cast<uint16_t*>(remainder)}, stream_);
}

Status DeviceStores::amax(const FirstRange& range, bool as_bf16, float* amax) {
  if (range.count == 0) return {};
  first_amax_kernel<<<grid_of(range.count), kThreads, 0, stream_>>>(range.values, range.first, range.count, as_bf16,
                                                                    amax);
  return launched("first_amax");
}

Status DeviceStores::fp8(const FirstRange& range, const float* amax, bool delayed, std::byte* to) {
  return each(range, ToFp8{reinterpret_cast<uint8_t*>(to), amax, delayed}, stream_);
}

Status DeviceStores::fp8_inverse(const float* amax, bool delayed, float* inverse) {
  fp8_inverse_kernel<<<1, 1, 0, stream_>>>(amax, delayed, inverse);
  return launched("first_fp8_inverse");
}

Status DeviceStores::fp16(const FirstRange& range, const float* amax, std::byte* to) {
  return each(range, ToF16{reinterpret_cast<__half*>(to), amax}, stream_);
}

Status DeviceStores::fp16_inverse(float* amax) {
  fp16_inverse_kernel<<<1, 1, 0, stream_>>>(amax);
  return launched("first_fp16_inverse");
}

}  // namespace mbb::trainer::cuda
