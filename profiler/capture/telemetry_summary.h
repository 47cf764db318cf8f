// What the telemetry of a launch comes to: the range of clocks, power, temperature and load, what throttled, and
// whether a device was ill.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

// NaN where nothing was sampled.
struct SampledRange {
  double low = 0;
  double median = 0;
  double high = 0;
};

struct GpuSummary {
  int gpu = 0;
  int64_t samples = 0;
  int64_t failed = 0;  // times it could not be read
  SampledRange sm_mhz, power_w, temperature_c;
  int64_t throttled = 0;       // samples with a throttle reason other than idle
  int64_t ill = 0;             // samples with a reason that no healthy, cooled device has
  uint64_t throttle_bits = 0;  // all reasons seen, idle aside
  int64_t ecc_corrected = 0;   // errors counted during the launch
  int64_t ecc_uncorrected = 0;
};

struct TelemetrySummary {
  int64_t samples = 0;        // of the host
  SampledRange host_busy;     // share of all CPUs
  SampledRange process_cpus;  // CPUs that the launch kept busy
  std::vector<GpuSummary> gpus;
};

// Of the text that telemetry_csv() wrote. Columns may be added; a missing one reads as unknown.
Result<TelemetrySummary> summarize_telemetry(std::string_view csv);

// SM clocks of all GPUs, in time order.
struct ClockSample {
  int64_t at_ns = 0;  // monotonic_ns()
  double mhz = 0;
};
Result<std::vector<ClockSample>> sm_clocks(std::string_view csv);

// What makes the launch's times no evidence, one sentence each: uncorrected memory errors, hardware slowdown, thermal
// throttling. Empty for a healthy device; a power cap is how these cards run, and no trouble.
std::vector<std::string> health_troubles(const TelemetrySummary& summary);

}  // namespace mbb::profiler
