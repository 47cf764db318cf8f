// Summaries of telemetry as it is written, and what is told as trouble.
#include "profiler/capture/telemetry_summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "profiler/capture/telemetry.h"

namespace mbb::profiler {
namespace {

TelemetrySample gpu_sample(int64_t at, uint32_t mhz, double watts, uint64_t reasons, int64_t uncorrected = 0) {
  TelemetrySample s;
  s.at_ns = at;
  s.gpu = 0;
  s.device.sm_mhz = mhz;
  s.device.power_w = watts;
  s.device.temperature_c = 60;
  s.device.throttle_reasons = reasons;
  s.device.ecc_corrected = 7;
  s.device.ecc_uncorrected = uncorrected;
  return s;
}

TelemetrySample host_sample(int64_t at, double busy, double cpus) {
  TelemetrySample s;
  s.at_ns = at;
  s.host_busy = busy;
  s.process_cpus = cpus;
  return s;
}

TEST(TelemetrySummary, RangesThrottlingAndErrorsOfWhatWasWritten) {
  const auto summary = summarize_telemetry(
      telemetry_csv({gpu_sample(1, 1500, 500, 0x4), host_sample(1, 0.25, 1.5), gpu_sample(2, 1980, 620, 0x1),
                     host_sample(2, 0.75, 2.0), gpu_sample(3, 1700, 610, 0x4, 2)}));
  ASSERT_TRUE(summary) << summary.error().what;
  EXPECT_EQ(summary->samples, 2);
  EXPECT_DOUBLE_EQ(summary->host_busy.high, 0.75);
  ASSERT_EQ(summary->gpus.size(), 1U);
  const GpuSummary& gpu = summary->gpus[0];
  EXPECT_EQ(gpu.samples, 3);
  EXPECT_DOUBLE_EQ(gpu.sm_mhz.low, 1500);
  EXPECT_DOUBLE_EQ(gpu.sm_mhz.median, 1700);
  EXPECT_DOUBLE_EQ(gpu.power_w.high, 620);
  EXPECT_EQ(gpu.throttled, 2);
  EXPECT_EQ(gpu.throttle_bits, 0x4U);
  EXPECT_EQ(gpu.ecc_corrected, 0);
  EXPECT_EQ(gpu.ecc_uncorrected, 2);
  ASSERT_EQ(health_troubles(*summary).size(), 1U) << "a power cap is no trouble";
  EXPECT_NE(health_troubles(*summary)[0].find("2 uncorrected"), std::string::npos);
}

TEST(TelemetrySummary, HeatIsToldAndHealthIsNot) {
  const auto hot = summarize_telemetry(telemetry_csv({gpu_sample(1, 900, 300, 0x20), gpu_sample(2, 900, 300, 0x20)}));
  ASSERT_TRUE(hot);
  ASSERT_EQ(health_troubles(*hot).size(), 1U);
  EXPECT_NE(health_troubles(*hot)[0].find("thermal"), std::string::npos) << health_troubles(*hot)[0];
  const auto host = summarize_telemetry(telemetry_csv({host_sample(1, 0.5, 1)}));
  ASSERT_TRUE(host);
  EXPECT_TRUE(host->gpus.empty());
  EXPECT_TRUE(health_troubles(*host).empty());
  EXPECT_TRUE(std::isnan(summarize_telemetry(telemetry_csv({}))->host_busy.median));
  EXPECT_FALSE(summarize_telemetry("at_ns,gpu\n1,x\n"));
}

}  // namespace
}  // namespace mbb::profiler
