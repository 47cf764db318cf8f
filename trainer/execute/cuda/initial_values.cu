// Counter-based normals on the device.
#include "trainer/execute/cuda/initial_values.h"

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

// A thread makes the four elements of a Philox block, by the host's formula in double, and keeps those inside the
// range.
template <typename T>
__global__ void fill_normal_kernel(T* data, int64_t first, int64_t count, uint64_t key, float stddev) {
  const int64_t end = (first + count + 3) / 4, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t block = first / 4 + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; block < end; block += stride) {
    const auto index = static_cast<uint64_t>(block);
    const PhiloxBlock words = philox4x32({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                                         static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = block * 4 + i - first;
      if (at < 0 || at >= count) continue;
      const double u = (static_cast<double>(words.word[i & ~1]) + 0.5) * 0x1p-32;
      const double phi = 6.283185307179586476925 * (static_cast<double>(words.word[i | 1]) * 0x1p-32);
      const double radius = sqrt(-2.0 * log(u));
      data[at] = from_float<T>(stddev * static_cast<float>((i & 1) != 0 ? radius * sin(phi) : radius * cos(phi)));
    }
  }
}

}  // namespace

Status fill_normal(Element element, void* data, int64_t first, int64_t count, uint64_t key, float stddev,
                   cudaStream_t stream) {
  if (element == Element::kF32)
    fill_normal_kernel<<<2112, 256, 0, stream>>>(static_cast<float*>(data), first, count, key, stddev);
  else
    fill_normal_kernel<<<2112, 256, 0, stream>>>(static_cast<bf16*>(data), first, count, key, stddev);
  return launched("fill_normal");
}

}  // namespace mbb::trainer::cuda
