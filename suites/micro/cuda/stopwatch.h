// Sustained timing of device work with clocks and power sampled meanwhile.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "profiler/host/nvml.h"

namespace mbb::suites {

struct Timing {
  double ms = 0.0;  // median over batches of the time of one call
  double ms_min = 0.0, ms_max = 0.0;
  int calls = 0;
  double sm_mhz = 0.0;  // means over the sustained part; 0 where NVML is missing
  double power_w = 0.0;
  uint64_t throttle_reasons = 0;  // any seen
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Mean ms of `calls` calls after one warm-up call.
  Result<double> quick(const std::function<Status()>& call, int calls);
  // Batches of about 20 ms for `seconds`; the first quarter warms up and is not counted.
  Result<Timing> sustained(const std::function<Status()>& call, double seconds);
  const profiler::Nvml* nvml() const { return nvml_.get(); }

 private:
  Result<double> batch(const std::function<Status()>& call, int calls);
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  Status created_;  // of the events
  std::unique_ptr<profiler::Nvml> nvml_;
};

}  // namespace mbb::suites
