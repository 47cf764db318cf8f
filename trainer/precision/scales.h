// Scales of quantized tensors and blocks (NUMERICS.md 3): quantize = x · scale, what is stored is the inverse.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trainer/precision/fp4.h"
#include "trainer/precision/fp8.h"

namespace mbb::trainer {

// Largest value of the type that is quantized: what an infinite scale becomes.
inline float largest_of(DType dtype) {
  return dtype == DType::kBf16 ? std::bit_cast<float>(0x7f7f0000U) : std::numeric_limits<float>::max();
}

// The power of two at or below a positive normal scale.
inline float power_of_two_below(float scale) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xff800000U);
}

// E8M0: a power of two as its exponent, biased by 127; code 255 is NaN.
inline float from_e8m0(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
}

// The inverse scale of an E8M0 block: the smallest power of two with amax <= maximum · 2^e; amax 0, infinite or NaN
// gives 1.
inline uint8_t e8m0_inverse_scale(float amax, float maximum) {
  if (!(amax > 0.0F) || std::isinf(amax)) return 127;
  int exponent = 0;
  // frexp: ratio = fraction · 2^exponent with fraction in [1/2, 1); a fraction of one half is a power of two already.
  const double fraction = std::frexp(static_cast<double>(amax) / static_cast<double>(maximum), &exponent);
  if (fraction == 0.5) --exponent;
  return static_cast<uint8_t>(std::clamp(exponent, -127, 127) + 127);
}

// Delayed scaling: the scale of the next step from the largest amax of the history; an amax of 0, infinite or NaN keeps
// the present one. `margin` are powers of two held back.
inline float delayed_scale(float amax, float present, DType dtype, int64_t margin) {
  if (!(amax > 0.0F) || std::isinf(amax)) return present;
  const float scale = std::ldexp(fp8_max(dtype) / amax, -static_cast<int>(margin));
  return std::isinf(scale) ? std::numeric_limits<float>::max() : scale;
}

// NVFP4's scale of a whole tensor, for which the block scales then fit E4M3; amax 0, infinite or NaN gives 1.
inline float fp4_tensor_scale(float amax) {
  if (!(amax > 0.0F) || std::isinf(amax)) return 1.0F;
  const float scale = fp8_max(DType::kE4M3) * kFp4Max / amax;
  return std::isinf(scale) ? std::numeric_limits<float>::max() : scale;
}

}  // namespace mbb::trainer
