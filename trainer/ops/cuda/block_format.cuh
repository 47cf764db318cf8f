// Narrow formats on the device as trainer/precision has them on the host.
#pragma once

#include <cuda_fp16.h>

#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
__device__ __forceinline__ float e5m2_value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E5M2)));
}
__device__ __forceinline__ float e8m0_value(uint8_t code) {
  return code == 255 ? __int_as_float(0x7fffffff) : ldexpf(1.0f, code - 127);
}

// Magnitudes 0, 1/2, 1, 3/2, 2, 3, 4, 6 by code.
__device__ __forceinline__ float e2m1_magnitude(int code) {
  return code < 2 ? 0.5f * static_cast<float>(code)
                  : (1.0f + 0.5f * static_cast<float>(code & 1)) * static_cast<float>(1 << ((code >> 1) - 1));
}
__device__ __forceinline__ float e2m1_value(uint8_t code) {
  return (code & 8) != 0 ? -e2m1_magnitude(code & 7) : e2m1_magnitude(code & 7);
}

// A half goes to the even code.
__device__ __forceinline__ uint8_t to_e2m1(float value) {
  if (isnan(value)) return 7;
  const float m = fabsf(value);
  const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | (signbit(value) ? 8 : 0));
}

__device__ __forceinline__ uint8_t to_e2m1_stochastic(float value, uint32_t nine_bits) {
  if (isnan(value)) return 7;
  const uint32_t fine = __half_as_ushort(__float2half_rn(fminf(fabsf(value), 6.0f) * 0x1p-14f));
  return static_cast<uint8_t>(((fine + nine_bits) >> 9) | (signbit(value) ? 8 : 0));
}

// The code of the smallest power of two e with amax <= maximum · e; maximum is normal and more than 1. Exponents differ
// by e's, one more where the fraction of amax is the larger one; subnormal magnitudes are far below the smallest e.
__device__ __forceinline__ uint8_t e8m0_inverse_scale(float amax, float maximum) {
  if (!(amax > 0.0f) || isinf(amax)) return 127;
  constexpr int kFraction = 0x7fffff;
  const int bits = __float_as_int(amax), most = __float_as_int(maximum);
  const int more = (bits & kFraction) > (most & kFraction) ? 1 : 0;
  return static_cast<uint8_t>(max((bits >> 23) - (most >> 23) + more + 127, 0));
}

}  // namespace mbb::trainer::cuda
