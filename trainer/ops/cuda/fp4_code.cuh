// E2M1 codes of values and what their blocks of 16 under E4M3 scales are multiplied by, the host's bit by bit in few
// instructions: sm_90 has none for such codes.
#pragma once

#include "trainer/ops/cuda/block_factor.cuh"
#include "trainer/ops/cuda/philox.cuh"

namespace mbb::trainer::cuda {

// NaN becomes the largest; signs are taken from values, and a NaN that an instruction gives has none.
__device__ __forceinline__ float fp4_magnitude(float value) {
  return fminf(fabsf(value), 6.0f);
}

// Codes count halves up to 2, then ones up to 4, then twos: three clamped parts of the magnitude, each rounded where
// the last bit of the sum is worth a code. 2^23 and the code, as fp32.
__device__ __forceinline__ uint32_t nearest_fp4(float value) {
  const float m = fp4_magnitude(value);
  float sum = fmaf(__saturatef(m * 0.5f), 4.0f, 0x1p23f);
  sum = fmaf(__saturatef(fmaf(m, 0.5f, -1.0f)), 2.0f, sum);
  return __float_as_uint(sum + __saturatef(fmaf(m, 0.5f, -2.0f)));
}

// The codes of eight values, the first one lowest.
__device__ __forceinline__ uint32_t nearest_word(const float (&value)[8]) {
  uint32_t codes = nearest_fp4(value[7]);
#pragma unroll
  for (int i = 6; i >= 0; --i) codes = codes * 16 + nearest_fp4(value[i]);
  const auto signs = [&](int i) {  // bytes that begin with them, of every second value
    const uint32_t low = __byte_perm(__float_as_uint(value[i]), __float_as_uint(value[i + 2]), 0x0073);
    const uint32_t high = __byte_perm(__float_as_uint(value[i + 4]), __float_as_uint(value[i + 6]), 0x0073);
    return __byte_perm(low, high, 0x5410);
  };
  constexpr uint32_t kOfSums = 0x4b000000u * 0x11111111u;  // bits of 2^23 in each
  return (codes - kOfSums) | (signs(0) >> 4 & 0x08080808u) | (signs(1) & 0x80808080u);
}

// A value's code with a random word, the first bits of a word: up where the random word is below what the code leaves
// as a part of 2^32. fp32 of the least exponents reads as E2M1 and 22 more bits; with the word's first 22 these decide
// but where they are equal: then `close` is at least kFp4Close, and to_e2m1_stochastic has the code.
constexpr uint32_t kFp4Close = 0u - (1u << 10);
__device__ __forceinline__ uint32_t stochastic_fp4(float value, uint32_t random, uint32_t& close) {
  constexpr uint32_t kBelow = (1u << 28) - 1;
  const uint32_t bits = __float_as_uint(__fmul_rz(fp4_magnitude(value), 0x1p-126f)) << 6;
  const uint32_t code = bits + ((__float_as_uint(value) & 0x80000000u) | kBelow) - (random >> 4);
  close = max(close, code << 4);
  return code;
}
__device__ __forceinline__ uint32_t append_fp4(uint32_t word, uint32_t code) {
  return __funnelshift_l(code, word, 4);
}

// The code of e4m3_factor's scale: a sixth as a division gives it, by a product and what that leaves where nothing
// under- or overflows.
__device__ __forceinline__ uint32_t fp4_scale_code(float amax, float of_copy) {
  constexpr float kSixth = 1.0f / 6.0f;
  const float about = amax * kSixth;
  float sixth = fmaf(fmaf(-6.0f, about, amax), kSixth, about);
  if (!(amax >= 0x1p-90f && amax < 0x1p126f)) sixth = amax / 6.0f;
  return __nv_cvt_float_to_fp8(sixth * of_copy, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float fp4_factor(uint32_t code, float of_copy) {
  const float kept = e4m3_value(static_cast<uint8_t>(code));
  return kept == 0.0f ? 0.0f : of_copy / kept;
}

}  // namespace mbb::trainer::cuda
