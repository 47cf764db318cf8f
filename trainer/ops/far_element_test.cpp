// Planted errors that a bound on the norm lets pass, and rounding that must.
#include "trainer/ops/far_element_test.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

constexpr size_t kRows = 200, kCols = 500;

std::vector<double> normal() {
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> draw;
  std::vector<double> values(kRows * kCols);
  for (double& v : values) v = draw(random);
  return values;
}

// As a tensor of FP8 holds them, the largest at the format's maximum.
std::vector<double> codes(const std::vector<double>& values, DType dtype, double turn = 1.0) {
  std::vector<double> out(values.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = from_fp8(to_fp8(static_cast<float>(values[i] * turn * fp8_max(dtype) / 8), dtype), dtype);
  return out;
}

TEST(FarElement, ThatIsAnothersIsFound) {
  std::vector<double> want = normal();
  want[31234] = 2.0;
  std::vector<double> got = want;
  got[31234] = -1.0;
  EXPECT_EQ(far_element(DType::kBf16, kCols, got, want), 31234U);
  got[31234] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(far_element(DType::kBf16, kCols, got, want), 31234U);
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    const std::vector<double> held = codes(want, dtype);
    got = held;
    got[31234] = held[31234] / 2;
    EXPECT_EQ(far_element(dtype, kCols, got, held), 31234U) << name(dtype);
  }
}

// Of 800 scales the norm of the difference does not see one, and an octave is as near as E8M0's codes lie.
TEST(FarElement, AnOctaveOfAScaleIsFound) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<double> want(800);
  for (double& scale : want) scale = static_cast<double>(from_e8m0(static_cast<uint8_t>(120 + random() % 16)));
  EXPECT_EQ(far_element(DType::kE8M0, 8, want, want), std::nullopt);
  for (const double octave : {0.5, 2.0}) {
    std::vector<double> got = want;
    got[637] *= octave;
    EXPECT_EQ(far_element(DType::kE8M0, 8, got, want), 637U);
  }
}

TEST(FarElement, AnyOtherValueIsAnother) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> want{0.0, 1.5, nan};
  EXPECT_EQ(other_element(want, want), std::nullopt);
  EXPECT_EQ(other_element(std::vector{-0.0, 1.5, nan}, want), std::nullopt);
  EXPECT_EQ(other_element(std::vector{0.0, 1.5000001, nan}, want), 1U);
  EXPECT_EQ(other_element(std::vector{0.0, 1.5, 1.0}, want), 2U);
  EXPECT_EQ(other_element(std::vector{nan, 1.5, nan}, want), 0U);
}

TEST(FarElement, RoundingIsNone) {
  const std::vector<double> want = normal();
  std::vector<double> got = want;
  for (size_t i = 0; i < got.size(); ++i) got[i] += i % 2 == 0 ? 0.1 : -0.1;
  EXPECT_EQ(far_element(DType::kBf16, kCols, got, want), std::nullopt);
  // Another code where a value lies at the edge of two.
  for (const DType dtype : {DType::kE4M3, DType::kE5M2})
    EXPECT_EQ(far_element(dtype, kCols, codes(want, dtype, 1.02), codes(want, dtype)), std::nullopt) << name(dtype);
  const std::vector<double> infinite(kCols, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(far_element(DType::kF32, kCols, infinite, infinite), std::nullopt);
}

}  // namespace
}  // namespace mbb::trainer
