// FP8 conversions: every code survives a round trip, rounding is to nearest even, overflow saturates.
#include "trainer/precision/fp8.h"

#include <gtest/gtest.h>

namespace mbb::trainer {
namespace {

TEST(Fp8, EveryFiniteCodeSurvivesARoundTrip) {
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    for (int code = 0; code < 256; ++code) {
      const float value = from_fp8(static_cast<uint8_t>(code), dtype);
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(to_fp8(value, dtype), code) << name(dtype) << " " << value;
    }
  }
}

TEST(Fp8, RoundsToTheNearestOfTwoNeighboursAndHalvesToEven) {
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    for (int code = 0; code < 0x7f; ++code) {
      const float low = from_fp8(static_cast<uint8_t>(code), dtype);
      const float high = from_fp8(static_cast<uint8_t>(code + 1), dtype);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = low + (high - low) / 2;
      EXPECT_EQ(to_fp8(middle, dtype), code % 2 == 0 ? code : code + 1);
      EXPECT_EQ(to_fp8(std::nextafter(middle, high), dtype), code + 1);
      EXPECT_EQ(to_fp8(-std::nextafter(middle, low), dtype), code | 0x80);
    }
  }
}

TEST(Fp8, SaturatesAndKeepsNan) {
  EXPECT_EQ(from_fp8(to_fp8(1e9F, DType::kE4M3), DType::kE4M3), 448.0F);
  EXPECT_EQ(from_fp8(to_fp8(-1e9F, DType::kE5M2), DType::kE5M2), -57344.0F);
  EXPECT_TRUE(std::isnan(from_fp8(to_fp8(std::nanf(""), DType::kE4M3), DType::kE4M3)));
}

TEST(Fp8, TensorScaleFollowsTheRule) {
  EXPECT_EQ(tensor_scale(2.0F, DType::kE4M3), 224.0F);
  EXPECT_EQ(tensor_scale(0.0F, DType::kE4M3), 1.0F);
  EXPECT_EQ(tensor_scale(std::numeric_limits<float>::infinity(), DType::kE5M2), 1.0F);
  EXPECT_EQ(tensor_scale(std::nanf(""), DType::kE5M2), 1.0F);
  EXPECT_EQ(tensor_scale(1e-38F, DType::kE5M2), std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace mbb::trainer
