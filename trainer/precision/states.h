// How AdamW keeps its states in fewer bits: fp16 on the host, bf16 with stochastic rounding, and an fp32 master as a
// bf16 weight with 16 bits more. The device's kernels use the same functions of the same counters.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trainer/program/dtype.h"

namespace mbb::trainer {

inline constexpr float kFp16Max = 65504.0F;

// Saturating, round to nearest even; NaN stays NaN.
inline uint16_t to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  const double magnitude = std::min(std::abs(static_cast<double>(value)), static_cast<double>(kFp16Max));
  if (magnitude == 0.0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  // In units of the last place; a carry into the next exponent keeps the encoding right.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign | (units < 1024 ? units : ((exponent + 15) << 10) + units - 1024));
}

inline float from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  float value = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024), std::max(exponent, 1) - 25);
  if (exponent == 31)
    value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x8000) != 0 ? -value : value;
}

// An fp32 value as a bf16 weight and the signed difference of their bits. The weight is the value rounded half up, so
// that every difference fits 16 bits and the value comes back exactly.
struct SplitMaster {
  Bf16 weight;
  uint16_t remainder = 0;
};
constexpr SplitMaster split_master(float master) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  const uint32_t high = (bits + 0x8000U) >> 16;
  return {{static_cast<uint16_t>(high)}, static_cast<uint16_t>(bits - (high << 16))};
}
constexpr float join_master(SplitMaster split) {
  const auto difference = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(split.remainder)));
  return std::bit_cast<float>((static_cast<uint32_t>(split.weight.bits) << 16) + difference);
}

// 32 random bits of an element of a bucket at a step: the low half rounds its weight, the high half its moments.
constexpr uint32_t rounding_bits(uint32_t seed, uint32_t step, uint64_t element) {
  uint64_t x = element / 2 * 0x9e3779b97f4a7c15ULL + ((uint64_t{seed} << 32) | step);
  for (int round = 0; round < 2; ++round) x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  return static_cast<uint32_t>(x >> (32 * (element & 1)));
}

// Away from zero with the probability of the dropped fraction; NaN and infinity keep their class.
constexpr Bf16 stochastic_bf16(float value, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool special = (bits & 0x7f800000U) == 0x7f800000U;
  return {static_cast<uint16_t>((special ? bits | ((bits & 0xffffU) != 0 ? 0x10000U : 0U) : bits + random16) >> 16)};
}

}  // namespace mbb::trainer
