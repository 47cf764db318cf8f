// Sizes and names of element types, and bf16 rounding against the nearest-value definition.
#include "trainer/program/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace mbb::trainer {
namespace {

TEST(DType, NamesReadBackAndSizesAgree) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(dtype_named(name(dtype)), dtype);
    EXPECT_EQ(bytes_of(dtype, 8), static_cast<size_t>(bits_of(dtype)));
  }
  EXPECT_EQ(dtype_named("fp32"), std::nullopt);
  EXPECT_EQ(bytes_of(DType::kE2M1, 3), 2u);
  EXPECT_EQ(size_of(DType::kBf16), 2u);
  EXPECT_TRUE(is_float(DType::kE8M0));
  EXPECT_FALSE(is_float(DType::kI32));
}

// The nearest of the two bf16 neighbours, ties to the even one, by comparing distances in long double.
Bf16 nearest_bf16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const long double magnitude = std::fabs(static_cast<long double>(value));
  uint16_t low = 0;
  uint16_t high = 0x7f80;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (static_cast<long double>(to_float(Bf16{middle})) <= magnitude ? low : high) = middle;
  }
  // Above the largest finite value the neighbour is 2^128, where the next step would be.
  const long double above = high == 0x7f80 ? std::ldexp(1.0L, 128) : static_cast<long double>(to_float(Bf16{high}));
  const long double down = magnitude - static_cast<long double>(to_float(Bf16{low}));
  const long double up = above - magnitude;
  const bool take_low = down < up || (down == up && low % 2 == 0);
  return {static_cast<uint16_t>((take_low ? low : high) | sign)};
}

TEST(Bf16, RoundsToNearestEvenFromBothWidths) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(to_bf16(value), nearest_bf16(value)) << value;
    // Around ties and just beside them, where rounding twice would show.
    const double tie = std::ldexp(std::floor(std::ldexp(1.0 + i % 128 / 128.0, 8)) + 0.5, -8);
    for (const double beside : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, 9.0), tie + 1e-12, -tie - 1e-12})
      ASSERT_EQ(to_bf16(beside), nearest_bf16(beside)) << beside;
    const double wide = static_cast<double>(value) * (1.0 + std::ldexp(static_cast<double>(i), -50));
    ASSERT_EQ(to_bf16(wide), nearest_bf16(wide)) << wide;
  }
}

TEST(Bf16, KeepsSpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bf16(kInfinity)), kInfinity);
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(to_float(to_bf16(-1e300)), -kInfinity);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<double>::quiet_NaN()))));
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(value))) {
      EXPECT_EQ(to_bf16(to_float(value)), value);
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
