// Clocks, power, temperature and throttle reasons of a GPU through NVML, opened at run time with our own prototypes.
//
// Reads only: no setting of the card is ever changed here. Without libnvidia-ml.so.1 open() says so and callers go on
// without.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "profiler/base/error.h"

namespace mbb::profiler {

struct GpuTelemetry {
  uint32_t sm_mhz = 0;
  uint32_t memory_mhz = 0;
  uint32_t temperature_c = 0;
  double power_w = 0.0;
  uint64_t throttle_reasons =
      0;  // NVML's bit set: 0x1 idle, 0x4 power cap, 0x20 thermal (software), 0x40 hardware slowdown
  // Counters since the driver was loaded; -1 where the card or driver has none.
  int64_t ecc_corrected = -1;
  int64_t ecc_uncorrected = -1;
  int64_t nvlink_tx_kib = -1;  // payload over all links
  int64_t nvlink_rx_kib = -1;
};

// The set bits in words, "none" without one: "power cap, software thermal".
std::string throttle_text(uint64_t reasons);

class Nvml {
 public:
  static Result<std::unique_ptr<Nvml>> open();
  virtual ~Nvml() = default;
  virtual Result<int> device_count() const = 0;
  virtual Result<std::string> device_name(int device) const = 0;
  virtual Result<std::string> driver_version() const = 0;
  // Watts the card may draw as configured now.
  virtual Result<double> power_limit_w(int device) const = 0;
  virtual Result<GpuTelemetry> sample(int device) const = 0;
};

}  // namespace mbb::profiler
