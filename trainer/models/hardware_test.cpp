// Peaks, exact names, and what stays unknown.
#include "trainer/models/hardware.h"

#include <gtest/gtest.h>

#include <set>

namespace mbb::trainer {
namespace {

// bf16, fp8, fp4 as NUMERICS, section 1 prints them.
TEST(Hardware, PeaksAreTheDenseOnes) {
  const struct {
    const char* device;
    double bf16, fp8, fp4, memory_tb_per_s;
  } cases[] = {
      {"NVIDIA H100 80GB HBM3", 989.4, 1978.9, 0, 3.35},
      {"NVIDIA H200", 989.4, 1978.9, 0, 4.8},
      {"NVIDIA A100-SXM4-80GB", 312, 0, 0, 2.04},
      {"NVIDIA B200", 2250, 4500, 9000, 0},
      {"NVIDIA B300 SXM6 AC", 2250, 4500, 13500, 0},
      {"NVIDIA GB200", 2450, 4900, 9800, 0},
      {"NVIDIA GB300", 2450, 4900, 14700, 0},
  };
  for (const auto& c : cases) {
    const auto device = match_device(c.device);
    ASSERT_TRUE(device.has_value()) << c.device;
    EXPECT_EQ(device->peak_tflops(PeakPrecision::kBf16), c.bf16) << c.device;
    EXPECT_EQ(device->peak_tflops(PeakPrecision::kFp8).value_or(0), c.fp8) << c.device;
    EXPECT_EQ(device->peak_tflops(PeakPrecision::kFp4).value_or(0), c.fp4) << c.device;
    if (c.memory_tb_per_s > 0) {
      EXPECT_DOUBLE_EQ(device->memory_bytes_per_s, c.memory_tb_per_s * 1e12);
    }
  }
  EXPECT_EQ(device_name_of("h100-sxm"), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(device_name_of("H100"), "H100");
  EXPECT_EQ(match_device("NVIDIA H100 80GB HBM3")->sm_count, 132);
  EXPECT_EQ(match_device("NVIDIA H100 80GB HBM3")->nvlink_bytes_per_s, 450e9);
  EXPECT_EQ(match_device("NVIDIA A100-SXM4-80GB")->nvlink_bytes_per_s, 300e9);
}

TEST(Hardware, NamesMatchExactlyOrNotAtAll) {
  EXPECT_NE(match_device("NVIDIA H100 PCIe")->bf16_tflops, match_device("NVIDIA H100 80GB HBM3")->bf16_tflops);
  EXPECT_NE(match_device("NVIDIA H100 NVL")->bf16_tflops, match_device("NVIDIA H100 80GB HBM3")->bf16_tflops);
  for (const char* unknown : {"", "NVIDIA H100", "NVIDIA H100 80GB HBM3 ", "nvidia h200", "NVIDIA H200 NVL"})
    EXPECT_FALSE(match_device(unknown).has_value()) << unknown;
}

TEST(Hardware, KeysAndNamesAreUniqueAndFound) {
  std::set<std::string> keys, names;
  for (const Hardware& row : all_hardware()) {
    EXPECT_TRUE(keys.insert(row.key).second) << row.key;
    EXPECT_TRUE(names.insert(row.device_name).second) << row.device_name;
    EXPECT_EQ(find_hardware(row.key).value().device_name, row.device_name);
    EXPECT_NEAR(row.bf16_tflops / row.tf32_tflops, 2.0, 1e-3) << row.key;
    if (row.fp8_tflops > 0) {
      EXPECT_NEAR(row.fp8_tflops / row.bf16_tflops, 2.0, 2e-3) << row.key;
    }
  }
  const auto missing = find_hardware("h10-sxm");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().hint.rfind("nearest: h100-sxm", 0), 0u) << missing.error().hint;
}

// The rates per clock reproduce the table where the boost clock is known.
TEST(Hardware, DerivedPeaksAgreeWithTheTable) {
  EXPECT_NEAR(derive_device("x", 9, 0, 132, 1.83e9, 0)->bf16_tflops, 989.4, 1);
  EXPECT_NEAR(derive_device("x", 9, 0, 132, 1.83e9, 0)->fp8_tflops, 1978.9, 1);
  EXPECT_NEAR(derive_device("x", 8, 0, 108, 1.41e9, 0)->bf16_tflops, 312, 1);
  EXPECT_NEAR(derive_device("NVIDIA L40S", 8, 9, 142, 2.52e9, 864e9)->bf16_tflops, 366, 1);
  EXPECT_EQ(derive_device("NVIDIA L40S", 8, 9, 142, 2.52e9, 864e9)->source, PeakSource::kDerived);
}

TEST(Hardware, OtherDevicesStayUnknown) {
  EXPECT_FALSE(derive_device("Tesla T4", 7, 5, 40, 1.59e9, 0).has_value());
  EXPECT_FALSE(derive_device("NVIDIA GeForce RTX 4090", 8, 9, 128, 2.5e9, 0).has_value());
  EXPECT_FALSE(derive_device("NVIDIA Thor", 11, 0, 20, 1.5e9, 0).has_value());
  EXPECT_FALSE(derive_device("x", 9, 0, 0, 1.8e9, 0).has_value());
  EXPECT_FALSE(derive_device("x", 9, 0, 132, 0, 0).has_value());
  EXPECT_FALSE(derive_device("x", 8, 0, 108, 1.41e9, 0)->peak_tflops(PeakPrecision::kFp8).has_value());
}

}  // namespace
}  // namespace mbb::trainer
