// Clocks, power, temperature, throttling, ECC, NVLink and host load over a run: ten samples a second, from a thread
// that keeps off the cores that launch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/host/affinity.h"
#include "profiler/host/nvml.h"

namespace mbb::profiler {

struct TelemetrySample {
  int64_t at_ns = 0;  // monotonic_ns()
  int32_t gpu = -1;   // NVML's index; -1: the row is the host's
  GpuTelemetry device;
  double host_busy = 0;     // share of all CPUs that was not idle since the sample before; host rows only
  double process_cpus = 0;  // CPUs this process kept busy, likewise
  bool failed = false;      // the device could not be read this time
};

struct TelemetryOptions {
  std::vector<int> gpus;  // NVML indices; empty: host only
  int64_t period_ms = 100;
  CpuSet launch_cpus;  // the sampling thread avoids these where others are allowed
};

class Telemetry {
 public:
  // Starts sampling. Without NVML the GPUs are left out and note() says why.
  explicit Telemetry(TelemetryOptions options);
  // With a given NVML, for tests.
  Telemetry(TelemetryOptions options, std::unique_ptr<Nvml> nvml);
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;
  ~Telemetry();

  // What was sampled since the last call, in time order; sampling goes on.
  std::vector<TelemetrySample> drain();
  // Stops and returns what was sampled since the last drain().
  std::vector<TelemetrySample> stop();
  const std::string& note() const { return note_; }

 private:
  void begin();
  void loop();
  void sample();

  struct Impl;
  TelemetryOptions options_;
  std::unique_ptr<Nvml> nvml_;
  std::string note_;
  std::unique_ptr<Impl> impl_;
};

// "at_ns,gpu,sm_mhz,...": one row a sample, empty fields where a row has no such value. Without the header row: what
// follows rows that are written already.
std::string telemetry_csv(const std::vector<TelemetrySample>& samples, bool header = true);

}  // namespace mbb::profiler
