// FP8 on the host: E4M3 (448, no infinity) and E5M2 (57344), saturating, round to nearest even; and the tensorwise
// scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trainer/program/dtype.h"

namespace mbb::trainer {

constexpr float fp8_max(DType dtype) {
  return dtype == DType::kE4M3 ? 448.0F : 57344.0F;
}

constexpr int fp8_mantissa_bits(DType dtype) {
  return dtype == DType::kE4M3 ? 3 : 2;
}

constexpr int fp8_bias(DType dtype) {
  return dtype == DType::kE4M3 ? 7 : 15;
}

// NaN stays NaN; what is larger than the maximum becomes the maximum.
inline uint8_t to_fp8(float value, DType dtype) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  const double magnitude = std::min(std::abs(static_cast<double>(value)), static_cast<double>(fp8_max(dtype)));
  if (magnitude == 0.0) return static_cast<uint8_t>(sign);
  const int mantissa_bits = fp8_mantissa_bits(dtype);
  const int smallest = 1 - fp8_bias(dtype);
  int exponent = std::max(std::ilogb(magnitude), smallest);
  // nearbyint rounds halves to even; a carry into the next exponent keeps the encoding right.
  auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  if (units == 2 << mantissa_bits) {
    units >>= 1;
    ++exponent;
  }
  const bool subnormal = units < (1 << mantissa_bits);
  const int field = subnormal ? units : ((exponent + fp8_bias(dtype)) << mantissa_bits) + units - (1 << mantissa_bits);
  return static_cast<uint8_t>(sign | field);
}

inline float from_fp8(uint8_t bits, DType dtype) {
  const int mantissa_bits = fp8_mantissa_bits(dtype);
  const int exponent = (bits & 0x7f) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const bool special = dtype == DType::kE5M2 && exponent == 31;
  if (special || (dtype == DType::kE4M3 && (bits & 0x7f) == 0x7f)) {
    const float inf = std::numeric_limits<float>::infinity();
    return special && mantissa == 0 ? ((bits & 0x80) != 0 ? -inf : inf) : std::numeric_limits<float>::quiet_NaN();
  }
  const int unit = std::max(exponent, 1) - fp8_bias(dtype) - mantissa_bits;
  const float value = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits)), unit);
  return (bits & 0x80) != 0 ? -value : value;
}

// NUMERICS.md 3: maximum / amax; amax 0, infinite or NaN gives 1, an infinite scale `largest`, the maximum of the type
// that is quantized.
inline float tensor_scale(float amax, DType dtype, float largest = std::numeric_limits<float>::max()) {
  if (!(amax > 0.0F) || std::isinf(amax)) return 1.0F;
  const float scale = fp8_max(dtype) / amax;
  return std::isinf(scale) ? largest : scale;
}

}  // namespace mbb::trainer
