// Which NVIDIA GPUs and driver this machine has, without linking against either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mbb::profiler {

struct GpuFacts {
  std::string model;  // "NVIDIA H100 80GB HBM3"
  std::int64_t memory_bytes = 0;
  double power_limit_w = 0;  // in force; 0 when not known
};

struct GpuInventory {
  std::string driver;       // "580.159"; empty when there is no driver
  std::string cuda_driver;  // CUDA version the driver speaks: "13.0"
  std::vector<GpuFacts> gpus;
  std::string note;  // why it is empty or incomplete; empty when it is whole
};

// Asks libnvidia-ml.so.1 (opened at run time); where it is missing or refuses, reads /proc/driver/nvidia.
GpuInventory list_gpus();

}  // namespace mbb::profiler
