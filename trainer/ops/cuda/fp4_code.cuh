// E2M1 codes of values and what their blocks of 16 under E4M3 scales are multiplied by, the host's bit by bit in few
// instructions: sm_90 has none for such codes.
#pragma once

#include "trainer/ops/cuda/block_factor.cuh"
#include "trainer/ops/cuda/philox.cuh"

namespace mbb::trainer::cuda {

// Bits of one where the mask has them, else of the other: one instruction.
__device__ __forceinline__ uint32_t bits_by(uint32_t mask, uint32_t one, uint32_t other) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(bits) : "r"(mask), "r"(one), "r"(other));
  return bits;
}

// fp32 lies in halves just below 2^23 and in ones above, as E2M1 does below 2 and above: 2^23 - 2 and a magnitude up
// to 4 round to the nearest code, of two the even one, and their bits count codes. From 4 on, 2^23 and half of it do.
// The less of both, and the largest code, is the code; NaN's bits are more than all. 2^23 - 2's bits more than the
// code.
__device__ __forceinline__ uint32_t nearest_fp4(float value) {
  constexpr uint32_t kLargest = 0x4afffffcu + 7;
  const float m = fabsf(value);
  return __vimin3_u32(__float_as_uint(m + (0x1p23f - 2.0f)), __float_as_uint(fmaf(m, 0.5f, 0x1p23f)), kLargest);
}

// Bytes of two words, each as its first bit eight times where kBytes has it plus 8; a byte's place among both
// otherwise.
template <uint32_t kBytes>
__device__ __forceinline__ uint32_t sign_bytes(uint32_t a, uint32_t b) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "n"(kBytes));
  return bytes;
}

// The codes of eight values, the first one lowest. Signs are taken from values, and a NaN that an instruction gives has
// none.
__device__ __forceinline__ uint32_t nearest_word(const float (&value)[8]) {
  uint32_t codes = nearest_fp4(value[7]);
#pragma unroll
  for (int i = 6; i >= 0; --i) codes = codes * 16 + nearest_fp4(value[i]);
  const auto signs = [&](int i) {  // of every second value, a byte each
    const auto of = [&](int at) { return __float_as_uint(value[i + at]); };
    return __byte_perm(sign_bytes<0x00fb>(of(0), of(2)), sign_bytes<0x00fb>(of(4), of(6)), 0x5410);
  };
  constexpr uint32_t kOfSums = 0x4afffffcu * 0x11111111u;  // those bits in each
  return (codes - kOfSums) | (bits_by(0x0f0f0f0fu, signs(0), signs(1)) & 0x88888888u);
}

// Codes of two values over 2^14, each the first bits of a half: fp16 of the least exponents reads as E2M1 and nine more
// bits. `nines`: nine random bits of each, from the fourth bit of its half on.
__device__ __forceinline__ uint32_t stochastic_two(float low, float high, uint32_t nines) {
  const __half2 two = __floats2half2_rn(low, high);
  const __half six = __ushort_as_half(7 << 9);
  const __half2 top = __hmin2(__habs2(two), __halves2half2(six, six));  // and of NaN
  const uint32_t codes = reinterpret_cast<const uint32_t&>(top) * 8 + nines;
  return bits_by(0x80008000u, reinterpret_cast<const uint32_t&>(two), codes);
}
// Of a draw's four columns in one row: of the first and the third, or of the others.
__device__ __forceinline__ uint32_t nine_bits_of(uint32_t row, bool others) {
  return (others ? __byte_perm(row, 0, 0x2301) : row) & 0x0ff80ff8u;
}
// Of one of them in two rows.
__device__ __forceinline__ uint32_t nine_bits_of(uint32_t low_row, uint32_t high_row, int column) {
  const uint32_t halves = column < 2 ? (column == 0 ? 0x5410 : 0x4501) : (column == 2 ? 0x7632 : 0x6723);
  return __byte_perm(low_row, high_row, halves) & 0x0ff80ff8u;
}
// The codes of eight values, the first one lowest. nines(i): the random bits of values i and i + 2.
template <typename Nines>
__device__ __forceinline__ uint32_t stochastic_word(const float (&value)[8], Nines&& nines) {
  const auto two = [&](int i) { return stochastic_two(value[i], value[i + 2], nines(i)); };
  const uint32_t even = __byte_perm(two(0), two(4), 0x7531), odd = __byte_perm(two(1), two(5), 0x7531);
  return bits_by(0xf0f0f0f0u, odd, even >> 4);
}

// The code of e4m3_factor's scale. In double the product by a sixth rounds to the fp32 that a division gives, of all
// fp32; what that takes, the units of conversions do, which have little else to.
__device__ __forceinline__ uint32_t fp4_scale_code(float amax, float of_copy) {
  const auto sixth = static_cast<float>(static_cast<double>(amax) * (1.0 / 6.0));
  return __nv_cvt_float_to_fp8(sixth * of_copy, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float fp4_factor(uint32_t code, float of_copy) {
  const float kept = e4m3_value(static_cast<uint8_t>(code));
  return kept == 0.0f ? 0.0f : of_copy / kept;
}

}  // namespace mbb::trainer::cuda
