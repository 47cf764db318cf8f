// What GPUs can do at most: the denominators of MFU and bandwidth shares, and the machines a projection can name.
//
// Peaks are dense; the 2:4-sparse figures that popular tables print are twice these and appear nowhere here. Devices
// match by the exact name the driver reports: H100 PCIe and NVL differ from H100 SXM. A device outside the table has
// peaks only if its compute capability has a known rate per SM and clock; otherwise MFU is unknown, never a number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb::trainer {

enum class PeakPrecision { kTf32, kBf16, kFp8, kFp4 };
const char* name(PeakPrecision precision);  // "tf32", "bf16", "fp8", "fp4"

enum class PeakSource {
  kTable,    // a row of the table
  kDerived,  // SM count × clock × operations per clock and SM
  kUser,     // given by the user
};
const char* name(PeakSource source);

struct Hardware {
  std::string key;          // what --hardware takes: "h100-sxm"
  std::string device_name;  // as the driver reports it
  int compute_major = 0, compute_minor = 0;
  int sm_count = 0;        // 0: not in the table, ask the driver
  double tf32_tflops = 0;  // dense, per GPU; 0: the device lacks the precision or the figure is unknown
  double bf16_tflops = 0;
  double fp8_tflops = 0;
  double fp4_tflops = 0;
  double memory_bytes_per_s = 0;
  double memory_bytes = 0;        // what the driver reports as total
  double nvlink_bytes_per_s = 0;  // each way; 0: none
  int nvlink_domain_size = 1;     // GPUs that reach each other by NVLink in the usual machine
  PeakSource source = PeakSource::kTable;

  std::optional<double> peak_tflops(PeakPrecision precision) const;
};

std::span<const Hardware> all_hardware();

// By key; an error that names the nearest.
Result<Hardware> find_hardware(std::string_view key);

// By the driver's name, exactly. Nothing when the device is not in the table.
std::optional<Hardware> match_device(std::string_view device_name);

// What users call a device: a key stands for the driver's name, anything else for itself.
std::string device_name_of(std::string_view key_or_name);

// A device outside the table, from what the driver reports. Nothing when its compute capability is not in the
// operations-per-clock table, or when it is a GeForce card (those run bf16 at half the rate of their capability).
std::optional<Hardware> derive_device(std::string_view device_name, int compute_major, int compute_minor, int sm_count,
                                      double clock_hz, double memory_bytes_per_s);

}  // namespace mbb::trainer
