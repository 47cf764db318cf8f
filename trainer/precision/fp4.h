// FP4 on the host: E2M1, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6; saturating, round to nearest even or stochastically.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trainer/precision/states.h"

namespace mbb::trainer {

inline constexpr float kFp4Max = 6.0F;
inline constexpr float kFp4Magnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

// Bit 3 is the sign, bits 2..0 the place among the magnitudes.
inline float from_fp4(uint8_t code) {
  const float magnitude = kFp4Magnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// Halves go to the even code, NaN (which E2M1 lacks) to +6 as the hardware's conversion does.
inline uint8_t to_fp4(float value) {
  if (std::isnan(value)) return 7;
  const float m = std::abs(value);
  // The middles that it lies above, or on where the code below is odd.
  const int code = (m > 0.25F) + (m >= 0.75F) + (m > 1.25F) + (m >= 1.75F) + (m > 2.5F) + (m >= 3.5F) + (m > 5.0F);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

// Up with the probability of the lost fraction, in 512ths: nine random bits. fp16 of the least exponents reads as a
// code and nine bits more; the value is first rounded to that, to nearest, and what it becomes is the expected value.
inline uint8_t to_fp4_stochastic(float value, uint32_t nine_bits) {
  if (std::isnan(value)) return 7;
  const uint32_t fine = to_f16(std::min(std::abs(value), kFp4Max) * 0x1p-14F);
  return static_cast<uint8_t>(((fine + nine_bits) >> 9) | (std::signbit(value) ? 8 : 0));
}

// Element i of an array that packs two elements a byte, the even one in the low half.
inline uint8_t fp4_at(const uint8_t* packed, int64_t i) {
  return static_cast<uint8_t>((packed[i / 2] >> (4 * (i % 2))) & 15);
}
inline void set_fp4(uint8_t* packed, int64_t i, uint8_t code) {
  const auto shift = static_cast<unsigned>(4 * (i % 2));
  packed[i / 2] = static_cast<uint8_t>((packed[i / 2] & ~(15U << shift)) | (static_cast<unsigned>(code) << shift));
}

}  // namespace mbb::trainer
