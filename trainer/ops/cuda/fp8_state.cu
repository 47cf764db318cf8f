// Kernels of fp8_state.h with their launches.
#include "trainer/ops/cuda/fp8_state.h"

#include <algorithm>

#include "trainer/ops/cuda/quantize_kernel.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;
constexpr size_t kPointers = 128;  // a launch takes this many by value

unsigned grid_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + kBlock - 1) / kBlock, 1, 4096));
}

// Blocks over masters, of which a thread has four vectors on their way.
unsigned grid_of_masters(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + kBlock * 16 - 1) / (kBlock * 16), 1, 8192));
}

struct ScalePointers {
  const float* at[kPointers];
};

__global__ void amax_record_kernel(ScalePointers scales, int count, float* amax, bool accumulate) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const float now = scales.at[i][1];
  if (!accumulate || isnan(now) || now > amax[i]) amax[i] = now;
}

__global__ void scale_update_kernel(float fp8_max, float margin, bool most_recent, const float* amax,
                                    const float* record, int64_t length, int64_t count, float* history, float* scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  history[static_cast<int64_t>(record[StepRecord::kStep]) % length * count + i] = amax[i];
  float largest = amax[i];
  for (int64_t r = 0; r < length && !most_recent; ++r) {
    const float past = history[r * count + i];
    if (isnan(past) || past > largest) largest = past;
  }
  if (!(largest > 0.0f) || isinf(largest)) return;  // keeps the old scale
  const float fresh = fp8_max / largest * margin;
  scale[i] = isinf(fresh) ? 3.402823466e38f : fresh;
}

struct DoublePointers {
  Doubles at[kPointers];
};

__global__ void scalar_sum_kernel(DoublePointers in, int count, double* out, bool add) {
  double sum = add ? *out : 0.0;
  for (int k = 0; k < count; ++k)
    for (int64_t i = 0; i < in.at[k].count; ++i) sum += in.at[k].data[i];
  *out = sum;
}

// 32 x 32 bytes a block of 32 x 8 threads.
__global__ void transpose_bytes_kernel(const uint8_t* q, uint8_t* t, int64_t rows, int64_t cols) {
  __shared__ uint8_t tile[32][33];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int64_t row = int64_t{blockIdx.y} * 32 + i;
    if (row < rows && column < cols) tile[i][threadIdx.x] = q[row * cols + column];
  }
  __syncthreads();
  const int64_t out_column = int64_t{blockIdx.y} * 32 + threadIdx.x;
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int64_t out_row = int64_t{blockIdx.x} * 32 + i;
    if (out_row < cols && out_column < rows) t[out_row * rows + out_column] = tile[threadIdx.x][i];
  }
}

// The same of 128 x 128 bytes in 16-byte pieces, where rows and columns are whole pieces. A thread turns 16 rows of 4
// columns; the gap behind every 16 rows lets the 8 pieces of 4 columns that a warp reads at once lie in 32 banks.
constexpr int kTurned = 128;
__device__ __forceinline__ int turned_word(int row, int word) {
  return row * (kTurned / 4 + 1) + row / 16 * 4 + word;
}
__global__ void __launch_bounds__(kBlock)
    transpose_pieces_kernel(const uint8_t* q, uint8_t* t, int64_t rows, int64_t cols) {
  __shared__ uint32_t tile[kTurned * (kTurned / 4 + 1) + kTurned / 16 * 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{blockIdx.y} * kTurned, first_column = int64_t{blockIdx.x} * kTurned;
  uint4 piece[4] = {};
  const int64_t column = first_column + thread % 8 * 16;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const int64_t row = first_row + thread / 8 + u * 32;
    if (row < rows && column < cols) piece[u] = *reinterpret_cast<const uint4*>(q + row * cols + column);
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    uint32_t* const to = tile + turned_word(thread / 8 + u * 32, thread % 8 * 4);
    to[0] = piece[u].x, to[1] = piece[u].y, to[2] = piece[u].z, to[3] = piece[u].w;
  }
  __syncthreads();
  const int rows_piece = thread % 8, word = thread / 8;
  uint32_t turned[4][4];  // [column][four rows]
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t* const from = tile + turned_word(rows_piece * 16 + k * 4, word);
    const uint32_t a = from[0], b = from[kTurned / 4 + 1], c = from[2 * (kTurned / 4 + 1)],
                   d = from[3 * (kTurned / 4 + 1)];
    const uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
    const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    turned[0][k] = __byte_perm(ab_low, cd_low, 0x5410), turned[1][k] = __byte_perm(ab_low, cd_low, 0x7632);
    turned[2][k] = __byte_perm(ab_high, cd_high, 0x5410), turned[3][k] = __byte_perm(ab_high, cd_high, 0x7632);
  }
  const int64_t out_row = first_column + word * 4, out_column = first_row + rows_piece * 16;
  if (out_row >= cols || out_column >= rows) return;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<uint4*>(t + (out_row + i) * rows + out_column) =
        make_uint4(turned[i][0], turned[i][1], turned[i][2], turned[i][3]);
}

// A range of masters may begin anywhere: elements in front of its first 16-byte vector and behind its last go one by
// one. With codes, of which four make a word, all do where the words lie otherwise.
constexpr int kVectorsInFlight = 4;
struct Pieces {
  int64_t head, vectors;
  __device__ Pieces(const float* master, int64_t count) {
    head = min(static_cast<int64_t>(-reinterpret_cast<uintptr_t>(master) % 16 / 4), count);
    vectors = (count - head) / 4;
  }
  // The i-th of the others, count - 4 * vectors in all.
  __device__ int64_t other(int64_t i) const { return i < head ? i : i + vectors * 4; }
};

__device__ __forceinline__ unsigned int magnitude(float x) {
  return __float_as_uint(fabsf(rounded<bf16>(x)));
}

__global__ void __launch_bounds__(kBlock) master_amax_kernel(const float* master, int64_t count, float* amax) {
  __shared__ unsigned int block_top;
  if (threadIdx.x == 0) block_top = 0;
  __syncthreads();
  const Pieces pieces(master, count);
  const auto* vectors = reinterpret_cast<const float4*>(master + pieces.head);
  const int64_t stride = int64_t{gridDim.x} * kBlock;
  unsigned int top = 0;
  for (int64_t first = int64_t{blockIdx.x} * kBlock * kVectorsInFlight + threadIdx.x; first < pieces.vectors;
       first += stride * kVectorsInFlight) {
    float4 value[kVectorsInFlight];
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) value[u] = vectors[min(first + u * kBlock, pieces.vectors - 1)];
#pragma unroll
    for (const float4& v : value)
      top = max(top, max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w))));
  }
  const int64_t others = count - pieces.vectors * 4;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < others; i += stride)
    top = max(top, magnitude(master[pieces.other(i)]));
  top = __reduce_max_sync(0xffffffffu, top);
  if ((threadIdx.x & 31) == 0) atomicMax(&block_top, top);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned int*>(amax), block_top);
}

template <__nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kBlock) master_quantize_kernel(const float* master, int64_t count, const float* amax,
                                                                 const float* given, uint8_t* q, float* scales) {
  const float largest = *amax;
  const float scale = given != nullptr ? *given : tensor_scale(largest, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (blockIdx.x == 0 && threadIdx.x == 0) scales[0] = 1.0f / scale, scales[1] = largest;
  const auto scaled = [scale](float x) { return rounded<bf16>(x) * scale; };
  Pieces pieces(master, count);
  if (reinterpret_cast<uintptr_t>(q + pieces.head) % 4 != 0) pieces.head = count, pieces.vectors = 0;
  const auto* vectors = reinterpret_cast<const float4*>(master + pieces.head);
  auto* words = reinterpret_cast<uint32_t*>(q + pieces.head);
  const int64_t stride = int64_t{gridDim.x} * kBlock;
  for (int64_t first = int64_t{blockIdx.x} * kBlock * kVectorsInFlight + threadIdx.x; first < pieces.vectors;
       first += stride * kVectorsInFlight) {
    float4 value[kVectorsInFlight];
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) value[u] = vectors[min(first + u * kBlock, pieces.vectors - 1)];
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) {
      const float4& v = value[u];
      if (first + u * kBlock < pieces.vectors)
        words[first + u * kBlock] = pack_fp8<kKind>(scaled(v.x), scaled(v.y), scaled(v.z), scaled(v.w));
    }
  }
  const int64_t others = count - pieces.vectors * 4;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < others; i += stride)
    q[pieces.other(i)] = __nv_cvt_float_to_fp8(scaled(master[pieces.other(i)]), __NV_SATFINITE, kKind);
}

}  // namespace

Status amax_record(std::span<const float* const> scales, float* amax, bool accumulate, const Launch& launch) {
  for (size_t base = 0; base < scales.size(); base += kPointers) {
    const size_t count = std::min(kPointers, scales.size() - base);
    ScalePointers some{};
    std::copy_n(scales.begin() + static_cast<std::ptrdiff_t>(base), count, some.at);
    amax_record_kernel<<<1, kPointers, 0, launch.stream>>>(some, static_cast<int>(count), amax + base, accumulate);
  }
  return launched("amax_record");
}

Status scale_update(const ScaleUpdateAttrs& a, const float* amax, const float* record, int64_t length, int64_t count,
                    float* history, float* scale, const Launch& launch) {
  const float fp8_max = a.to == DType::kE4M3 ? 448.0f : 57344.0f;
  const float margin = std::ldexp(1.0f, -static_cast<int>(a.margin));
  scale_update_kernel<<<grid_for(count), kBlock, 0, launch.stream>>>(fp8_max, margin, a.most_recent, amax, record,
                                                                     length, count, history, scale);
  return launched("scale_update");
}

Status scalar_sum(std::span<const Doubles> in, double* out, const Launch& launch) {
  for (size_t base = 0; base == 0 || base < in.size(); base += kPointers) {
    const size_t count = std::min(kPointers, in.size() - base);
    DoublePointers some{};
    std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(base), count, some.at);
    scalar_sum_kernel<<<1, 1, 0, launch.stream>>>(some, static_cast<int>(count), out, base > 0);
  }
  return launched("scalar_sum");
}

Status transpose_bytes(RowShape shape, const void* q, void* t, const Launch& launch) {
  const auto* from = static_cast<const uint8_t*>(q);
  auto* to = static_cast<uint8_t*>(t);
  const bool pieces = shape.rows % 16 == 0 && shape.cols % 16 == 0 &&
                      (reinterpret_cast<uintptr_t>(q) | reinterpret_cast<uintptr_t>(t)) % 16 == 0;
  const int64_t side = pieces ? kTurned : 32;
  const dim3 grid(static_cast<unsigned>((shape.cols + side - 1) / side),
                  static_cast<unsigned>((shape.rows + side - 1) / side));
  if (pieces)
    transpose_pieces_kernel<<<grid, kBlock, 0, launch.stream>>>(from, to, shape.rows, shape.cols);
  else
    transpose_bytes_kernel<<<grid, dim3(32, 8), 0, launch.stream>>>(from, to, shape.rows, shape.cols);
  return launched("transpose_bytes");
}

Status master_amax(const float* master, int64_t count, float* amax, const Launch& launch) {
  master_amax_kernel<<<grid_of_masters(count), kBlock, 0, launch.stream>>>(master, count, amax);
  return launched("master_amax");
}

Status master_quantize(Element to, const float* master, int64_t count, const float* amax, const float* given, void* q,
                       float* scales, const Launch& launch) {
  auto* bytes = static_cast<uint8_t*>(q);
  const unsigned grid = grid_of_masters(count);
  if (to == Element::kE4m3)
    master_quantize_kernel<__NV_E4M3><<<grid, kBlock, 0, launch.stream>>>(master, count, amax, given, bytes, scales);
  else
    master_quantize_kernel<__NV_E5M2><<<grid, kBlock, 0, launch.stream>>>(master, count, amax, given, bytes, scales);
  return launched("master_quantize");
}

}  // namespace mbb::trainer::cuda
