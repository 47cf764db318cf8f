// The table of devices.
#include "trainer/models/hardware.h"

#include <fmt/format.h>

#include <vector>

#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGB = 1e9;

// Vendor figures, dense. Where the data sheet prints only the sparse figure, half of it stands here.
const std::vector<Hardware>& table() {
  static const std::vector<Hardware> rows = {
      // key, device, capability, SMs, tf32, bf16, fp8, fp4, memory B/s, memory, NVLink each way, domain
      {"a100-sxm-40gb", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 156, 312, 0, 0, 1555 * kGB, 40960 * kMiB, 300 * kGB, 8},
      {"a100-sxm", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 156, 312, 0, 0, 2040 * kGB, 81920 * kMiB, 300 * kGB, 8},
      {"h100-sxm", "NVIDIA H100 80GB HBM3", 9, 0, 132, 494.7, 989.4, 1978.9, 0, 3350 * kGB, 81559 * kMiB, 450 * kGB, 8},
      {"h100-pcie", "NVIDIA H100 PCIe", 9, 0, 114, 378, 756, 1513, 0, 2000 * kGB, 81559 * kMiB, 300 * kGB, 2},
      {"h100-nvl", "NVIDIA H100 NVL", 9, 0, 132, 417.5, 835, 1670, 0, 3900 * kGB, 95830 * kMiB, 300 * kGB, 2},
      {"h200-sxm", "NVIDIA H200", 9, 0, 132, 494.7, 989.4, 1978.9, 0, 4800 * kGB, 143771 * kMiB, 450 * kGB, 8},
      {"b200", "NVIDIA B200", 10, 0, 148, 1125, 2250, 4500, 9000, 7700 * kGB, 183359 * kMiB, 900 * kGB, 8},
      {"gb200", "NVIDIA GB200", 10, 0, 152, 1225, 2450, 4900, 9800, 8000 * kGB, 189471 * kMiB, 900 * kGB, 72},
      {"b300", "NVIDIA B300 SXM6 AC", 10, 3, 0, 1125, 2250, 4500, 13500, 7700 * kGB, 275040 * kMiB, 900 * kGB, 8},
      {"gb300", "NVIDIA GB300", 10, 3, 0, 1225, 2450, 4900, 14700, 8000 * kGB, 284672 * kMiB, 900 * kGB, 72},
  };
  return rows;
}

// Dense operations a clock and SM by compute capability: tensor cores, fp32 accumulation.
struct OpsPerClock {
  int major, minor;
  double bf16, fp8;
};
constexpr OpsPerClock kOpsPerClock[] = {
    {8, 0, 2048, 0},    {8, 6, 1024, 0},      {8, 9, 1024, 2048},
    {9, 0, 4096, 8192}, {10, 0, 8192, 16384}, {10, 3, 8192, 16384},
};

}  // namespace

const char* name(PeakPrecision precision) {
  switch (precision) {
    case PeakPrecision::kTf32: return "tf32";
    case PeakPrecision::kBf16: return "bf16";
    case PeakPrecision::kFp8: return "fp8";
    case PeakPrecision::kFp4: return "fp4";
  }
  return "?";
}

const char* name(PeakSource source) {
  switch (source) {
    case PeakSource::kTable: return "table";
    case PeakSource::kDerived: return "derived";
    case PeakSource::kUser: return "user";
  }
  return "?";
}

std::optional<double> Hardware::peak_tflops(PeakPrecision precision) const {
  double tflops = 0;
  switch (precision) {
    case PeakPrecision::kTf32: tflops = tf32_tflops; break;
    case PeakPrecision::kBf16: tflops = bf16_tflops; break;
    case PeakPrecision::kFp8: tflops = fp8_tflops; break;
    case PeakPrecision::kFp4: tflops = fp4_tflops; break;
  }
  return tflops > 0 ? std::optional<double>(tflops) : std::nullopt;
}

std::span<const Hardware> all_hardware() {
  return table();
}

Result<Hardware> find_hardware(std::string_view key) {
  std::vector<std::string> keys;
  for (const Hardware& row : table()) {
    if (row.key == to_lower(key)) return row;
    keys.push_back(row.key);
  }
  const std::optional<std::string> close = nearest(key, keys);
  return fail(ErrorCode::kNotFound, fmt::format("no hardware is named \"{}\"", key),
              fmt::format("{}known: {}", close ? "nearest: " + *close + "; " : "", join(keys, ", ")));
}

std::optional<Hardware> match_device(std::string_view device_name) {
  for (const Hardware& row : table())
    if (row.device_name == device_name) return row;
  return std::nullopt;
}

std::string device_name_of(std::string_view key_or_name) {
  for (const Hardware& row : table())
    if (row.key == key_or_name) return row.device_name;
  return std::string(key_or_name);
}

std::optional<Hardware> derive_device(std::string_view device_name, int compute_major, int compute_minor, int sm_count,
                                      double clock_hz, double memory_bytes_per_s) {
  if (device_name.find("GeForce") != std::string_view::npos || sm_count < 1 || !(clock_hz > 0)) return std::nullopt;
  for (const OpsPerClock& rate : kOpsPerClock) {
    if (rate.major != compute_major || rate.minor != compute_minor) continue;
    Hardware device;
    device.key = "derived";
    device.device_name = device_name;
    device.compute_major = compute_major;
    device.compute_minor = compute_minor;
    device.sm_count = sm_count;
    device.bf16_tflops = rate.bf16 * sm_count * clock_hz / 1e12;
    device.fp8_tflops = rate.fp8 * sm_count * clock_hz / 1e12;
    device.memory_bytes_per_s = memory_bytes_per_s;
    device.source = PeakSource::kDerived;
    return device;
  }
  return std::nullopt;
}

}  // namespace mbb::trainer
