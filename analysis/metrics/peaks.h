// Dense peak rates by exact device name: what MFU divides by. Never the 2:4-sparse figures.
#pragma once

#include <optional>
#include <string_view>

namespace mbb::analysis {

struct DevicePeaks {
  const char* device;      // as the driver names it
  double bf16_tflops = 0;  // dense
  double fp8_tflops = 0;   // dense; 0: no FP8 units
  double fp4_tflops = 0;   // dense; 0: none
};

// Nothing for a device that is not in the table: its MFU is unknown. Variants (PCIe, NVL) differ from SXM and are not
// guessed from part of a name.
std::optional<DevicePeaks> peaks_of(std::string_view device);

}  // namespace mbb::analysis
