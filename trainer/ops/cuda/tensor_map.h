// Descriptions of tensors for Hopper's copy engine, which moves boxes of them in the 128-byte swizzle.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer::cuda {

// One dimension, innermost first. stride_bytes is an element for the innermost and a multiple of 16 for the others.
struct MapDimension {
  int64_t extent = 1;
  int64_t stride_bytes = 2;
  int box = 1;  // at most 256; the innermost at most 128 bytes
};

// `data` must be 16-byte aligned. Needs a device of compute capability 9.0 and its driver.
Result<CUtensorMap> bf16_map(const void* data, const std::vector<MapDimension>& dimensions);
Result<CUtensorMap> codes_map(const void* data, const std::vector<MapDimension>& dimensions);  // of a byte

}  // namespace mbb::trainer::cuda
