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
  std::string uuid;          // "GPU-8f2c..."; empty when not known
  int nvlinks = -1;          // that are up; -1 when not known
  int nvml_index = 0;        // its number in the management library, which counts hidden ones too
};

struct GpuInventory {
  std::string driver;          // "580.159"; empty when there is no driver
  std::string cuda_driver;     // CUDA version the driver speaks: "13.0"
  std::vector<GpuFacts> gpus;  // that CUDA_VISIBLE_DEVICES shows, in CUDA's order
  std::string note;            // why it is empty or incomplete; empty when it is whole
};

// Asks libnvidia-ml.so.1 (opened at run time); where it is missing or refuses, reads /proc/driver/nvidia.
GpuInventory list_gpus();

// Of how many GPUs so many NVLinks are up: "8 x 18 links", "7 x 18 links, 1 x 17 links"; "none"; empty when not known.
std::string nvlink_text(const std::vector<GpuFacts>& gpus);

// The management library's number of the GPU that CUDA numbers `device`; `device` itself where nobody knows.
int nvml_index_of(int device);

}  // namespace mbb::profiler
