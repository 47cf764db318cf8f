// 16-byte loads and stores of eight elements as floats, conversions, and block reductions in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace mbb::trainer::cuda {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ void load8(const bf16* from, float (&to)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void load8(const float* from, float (&to)[8]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void store8(bf16* to, const float (&from)[8]) {
  uint4 raw;
  raw.x = pack_bf16(from[0], from[1]);
  raw.y = pack_bf16(from[2], from[3]);
  raw.z = pack_bf16(from[4], from[5]);
  raw.w = pack_bf16(from[6], from[7]);
  *reinterpret_cast<uint4*>(to) = raw;
}

__device__ __forceinline__ void store8(float* to, const float (&from)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

// Eight elements as they lie in memory: loaded early, unpacked when needed.
template <typename T>
struct Raw8 {
  uint4 part[sizeof(T) / 2];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) part[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) reinterpret_cast<uint4*>(to)[i] = part[i];
  }
  __device__ __forceinline__ void unpack(float (&to)[8]) const {
    load8(reinterpret_cast<const T*>(part), to);
  }
};

__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(float x) {
  return x;
}
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

// What a store to T would keep: norms and activations round to the stored type before the next op sees them.
template <typename T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// Four fp8 in one word, saturating, round to nearest even. Bits low to high are a, b, c, d.
template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ uint32_t pack_fp8(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kKind);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kKind);
  return low | (high << 16);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// All threads get the sum. `scratch` holds 32 floats; the block may be reused at once (two barriers inside).
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < warps ? scratch[lane] : 0.0f;
  return warp_sum(x);
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
  x = warp_max(x);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < warps ? scratch[lane] : -INFINITY;
  return warp_max(x);
}

// Largest of non-negative floats across the grid: their bit patterns order as integers do.
__device__ __forceinline__ void atomic_amax(float* slot, float amax) {
  atomicMax(reinterpret_cast<unsigned int*>(slot), __float_as_uint(amax));
}

}  // namespace mbb::trainer::cuda
