// The factor of a block's values from its largest magnitude, and the inverse scale that is kept of it.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/block_format.cuh"

namespace mbb::trainer::cuda {

struct BlockRule {
  BlockScale scale;
  float maximum;  // of the code
  float largest;  // what an infinite scale becomes
};

struct BlockFactor {
  float factor;
  uint32_t kept;  // fp32 bits or a code
};

__device__ __forceinline__ BlockFactor e8m0_factor(const BlockRule& rule, float amax) {
  const uint8_t code = e8m0_inverse_scale(amax, rule.maximum);
  return {__uint_as_float(static_cast<uint32_t>(254 - code) << 23), code};  // codes are below 254
}

// Scales f32, whole or their power of two.
__device__ __forceinline__ BlockFactor f32_factor(const BlockRule& rule, float amax) {
  float scale = 1.0f;
  if (amax > 0.0f && !isinf(amax)) {
    scale = rule.maximum / amax;
    if (isinf(scale)) scale = rule.largest;
  }
  if (rule.scale == BlockScale::kPowerOfTwo) scale = __uint_as_float(__float_as_uint(scale) & 0xff800000u);
  return {scale, __float_as_uint(1.0f / scale)};
}

// E4M3 scales of E2M1 codes, relative to the copy's.
__device__ __forceinline__ float fp4_tensor_scale(float amax) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;
  const float scale = 448.0f * 6.0f / amax;
  return isinf(scale) ? 3.402823466e38f : scale;
}
__device__ __forceinline__ BlockFactor e4m3_factor(float amax, float of_copy) {
  const uint8_t code = __nv_cvt_float_to_fp8(amax / 6.0f * of_copy, __NV_SATFINITE, __NV_E4M3);
  const float kept = e4m3_value(code);
  return {kept == 0.0f ? 0.0f : of_copy / kept, code};
}

__device__ __forceinline__ BlockFactor block_factor(const BlockRule& rule, float amax, float of_copy) {
  if (rule.scale == BlockScale::kE8M0) return e8m0_factor(rule, amax);
  return rule.scale == BlockScale::kE4M3 ? e4m3_factor(amax, of_copy) : f32_factor(rule, amax);
}

__device__ __forceinline__ void store_scale(const BlockRule& rule, void* scales, int64_t at, uint32_t kept) {
  if (rule.scale == BlockScale::kE8M0 || rule.scale == BlockScale::kE4M3)
    static_cast<uint8_t*>(scales)[at] = static_cast<uint8_t>(kept);
  else
    static_cast<uint32_t*>(scales)[at] = kept;
}

}  // namespace mbb::trainer::cuda
