// The table of device peaks.
#include "analysis/metrics/peaks.h"

#include <algorithm>
#include <array>

namespace mbb::analysis {

namespace {
constexpr auto kPeaks = std::to_array<DevicePeaks>({
    {"NVIDIA A100-SXM4-80GB", 312.0, 0.0, 0.0},
    {"NVIDIA A100-SXM4-40GB", 312.0, 0.0, 0.0},
    {"NVIDIA H100 80GB HBM3", 989.4, 1978.9, 0.0},
    {"NVIDIA H200", 989.4, 1978.9, 0.0},
    {"NVIDIA B200", 2250.0, 4500.0, 9000.0},
    {"NVIDIA B300", 2250.0, 4500.0, 13500.0},
    {"NVIDIA GB200", 2450.0, 4900.0, 9800.0},
    {"NVIDIA GB300", 2450.0, 4900.0, 14700.0},
});
}  // namespace

std::optional<DevicePeaks> peaks_of(std::string_view device) {
  const auto found = std::find_if(kPeaks.begin(), kPeaks.end(), [&](const auto& one) { return one.device == device; });
  if (found == kPeaks.end()) return std::nullopt;
  return *found;
}

}  // namespace mbb::analysis
