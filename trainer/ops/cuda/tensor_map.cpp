// Tensor maps through the driver's entry point, so that nothing links libcuda.
#include "trainer/ops/cuda/tensor_map.h"

#include <fmt/core.h>

#include <array>

#include "profiler/base/check.h"
#include "trainer/ops/cuda/driver_entry.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Result<Encode> encoder() {
  const auto found = driver_entry<Encode>("cuTensorMapEncodeTiled", 12000);
  if (found != nullptr) return found;
  return fail(ErrorCode::kUnavailable, "the driver has no cuTensorMapEncodeTiled", "CUDA >= 12.0 is needed");
}

Result<CUtensorMap> map_of(CUtensorMapDataType type, const void* data, const std::vector<MapDimension>& dimensions) {
  static const Result<Encode> encode = encoder();
  if (!encode) return tl::unexpected(encode.error());
  constexpr size_t kMost = 5;
  std::array<cuuint64_t, kMost> extents{}, strides{};
  std::array<cuuint32_t, kMost> boxes{}, steps{};
  MB_CHECK(!dimensions.empty() && dimensions.size() <= kMost, "a tensor map has one to five dimensions");
  for (size_t i = 0; i < dimensions.size(); ++i) {
    extents[i] = static_cast<cuuint64_t>(dimensions[i].extent);
    boxes[i] = static_cast<cuuint32_t>(dimensions[i].box);
    steps[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(dimensions[i].stride_bytes);
  }
  CUtensorMap map{};
  // The driver only writes down the address.
  const CUresult status =
      (*encode)(&map, type, static_cast<cuuint32_t>(dimensions.size()), const_cast<void*>(data), extents.data(),
                strides.data(), boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(ErrorCode::kUnavailable,
                fmt::format("describing a tensor for the copy engine: driver error {}", static_cast<int>(status)));
  return map;
}

}  // namespace

Result<CUtensorMap> bf16_map(const void* data, const std::vector<MapDimension>& dimensions) {
  return map_of(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, dimensions);
}

Result<CUtensorMap> codes_map(const void* data, const std::vector<MapDimension>& dimensions) {
  return map_of(CU_TENSOR_MAP_DATA_TYPE_UINT8, data, dimensions);
}

}  // namespace mbb::trainer::cuda
