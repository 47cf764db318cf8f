// Sampling with a made-up card: rate, rows, failures; and without a driver.
#include "profiler/capture/telemetry.h"

#include <gtest/gtest.h>

#include <thread>

#include "profiler/base/csv.h"

namespace mbb::profiler {
namespace {

class MadeUpNvml final : public Nvml {
 public:
  Result<int> device_count() const override { return 2; }
  Result<std::string> device_name(int) const override { return std::string("made up"); }
  Result<std::string> driver_version() const override { return std::string("1"); }
  Result<double> power_limit_w(int) const override { return 700.0; }
  Result<GpuTelemetry> sample(int device) const override {
    if (device == 1) return fail(ErrorCode::kUnavailable, "NVML: gone");
    GpuTelemetry t;
    t.sm_mhz = 1755, t.memory_mhz = 2619, t.power_w = 612.5, t.temperature_c = 61, t.throttle_reasons = 4;
    t.ecc_corrected = 3, t.nvlink_tx_kib = 1024;
    return t;
  }
};

TEST(Telemetry, SamplesCardsAndHost) {
  Telemetry telemetry({.gpus = {0, 1}, .period_ms = 10, .launch_cpus = {}}, std::make_unique<MadeUpNvml>());
  std::this_thread::sleep_for(std::chrono::milliseconds(75));
  auto samples = telemetry.drain();
  EXPECT_GE(samples.size(), 3U);
  std::this_thread::sleep_for(std::chrono::milliseconds(75));
  const auto rest = telemetry.stop();
  EXPECT_GE(rest.size(), 3U);
  samples.insert(samples.end(), rest.begin(), rest.end());
  ASSERT_GE(samples.size(), 9U);
  int host = 0, card = 0, failed = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) {
      EXPECT_GE(samples[i].at_ns, samples[i - 1].at_ns);
    }
    host += samples[i].gpu < 0 ? 1 : 0;
    card += samples[i].gpu == 0 ? 1 : 0;
    failed += samples[i].failed ? 1 : 0;
    if (samples[i].gpu == 0) {
      EXPECT_EQ(samples[i].device.sm_mhz, 1755U);
    }
  }
  EXPECT_EQ(host, card);
  EXPECT_EQ(failed, card) << "card 1 fails each time and is counted";
  EXPECT_LE(host, 40) << "ten milliseconds apart";
  const auto halves = telemetry_csv({samples.begin(), samples.begin() + 2}) +
                      telemetry_csv({samples.begin() + 2, samples.end()}, false);
  EXPECT_EQ(halves, telemetry_csv(samples)) << "rows that follow rows";
  const auto table = CsvTable::parse(telemetry_csv(samples));
  ASSERT_TRUE(table) << table.error().what;
  EXPECT_EQ(table->rows(), samples.size());
  EXPECT_EQ(table->text(0, table->column("ecc_corrected")), "3");
  EXPECT_EQ(table->text(0, table->column("ecc_uncorrected")), "");
  EXPECT_EQ(table->text(1, table->column("failed")), "1");
}

TEST(Telemetry, StopsAtOnceAndTwice) {
  Telemetry telemetry({.gpus = {}, .period_ms = 60'000, .launch_cpus = {}});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GE(telemetry.stop().size(), 0U);
  EXPECT_TRUE(telemetry.stop().empty());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Telemetry, KeepsOffTheLaunchCores) {
  const CpuSet allowed = allowed_cpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU is allowed here";
  // The process's CPU time of a thread bound to the last CPU cannot be seen from outside, so ask the kernel: while it
  // samples, no thread of ours but it may be bound elsewhere.
  Telemetry telemetry({.gpus = {}, .period_ms = 5, .launch_cpus = {allowed.front()}});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(telemetry.stop().empty());
  EXPECT_EQ(allowed_cpus(), allowed) << "this thread stays where it was";
}

}  // namespace
}  // namespace mbb::profiler
