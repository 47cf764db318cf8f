// Forward of RMSNorm and LayerNorm: a block holds one row in registers; but for norm_forward_row_kernel it walks rows
// with a grid stride.
#pragma once

#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// `amax` holds a non-negative float's bits; nothing to raise when `to` is null.
__device__ __forceinline__ void raise_amax(float* to, unsigned int amax) {
  if (to == nullptr) return;
  amax = __reduce_max_sync(0xffffffffu, amax);
  auto* const bits = reinterpret_cast<unsigned int*>(to);
  if ((threadIdx.x & 31) == 0 && amax > __ldcg(bits)) atomicMax(bits, amax);
}

// Where the warps of a block leave their sums: a value's lie 32 / kSums banks behind those of the one before.
template <int kSums>
using SumScratch = float[kSums][32 + 32 / kSums];

// The warp's sum of value `lane / (32 / kSums)`: at each step a lane gives away half of its values.
template <int kSums>
__device__ __forceinline__ float split_warp_sum(float (&x)[kSums]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
    const int offset = 32 * half / kSums;
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float given = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(0xffffffffu, given, offset);
    }
  }
#pragma unroll
  for (int offset = 16 / kSums; offset > 0; offset /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], offset);
  return x[0];
}

// All threads get the block's sums, behind one barrier: calls alternate between two scratches.
template <int kSums>
__device__ __forceinline__ void row_sums(float (&x)[kSums], SumScratch<kSums>& scratch) {
  constexpr int kLanes = 32 / kSums;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
  const int value = lane / kLanes, place = lane % kLanes;
  float sum = split_warp_sum(x);
  if (place == 0) scratch[value][warp] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (place + i * kLanes < warps) sum += scratch[value][place + i * kLanes];
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
#pragma unroll
  for (int n = 0; n < kSums; ++n) x[n] = kSums == 1 ? sum : __shfl_sync(0xffffffffu, sum, n * kLanes);
}

template <typename T>
struct NormForwardParams {
  const T *x, *residual, *weight, *bias;
  T *sum, *y;
  float *mean, *rstd, *amax;
  int64_t rows, cols;
  float eps, weight_offset;
};

// y of one vector of a row.
template <typename T, bool kLayer>
__device__ __forceinline__ void store_normalized(const NormForwardParams<T>& p, int64_t row, int64_t column,
                                                 const Raw8<T>& weight, float mean, float rstd, float (&x)[8],
                                                 unsigned int& amax) {
  float w[8], b[8] = {};
  weight.unpack(w);
  if constexpr (kLayer) load8(p.bias + column, b);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = (x[i] - mean) * rstd * (p.weight_offset + w[i]) + b[i];
  if (p.amax != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = max(amax, __float_as_uint(fabsf(rounded<T>(x[i]))));
  }
  if (p.y != nullptr) store8(p.y + row * p.cols + column, x);
}

// Where registers allow it (one vector a thread) the next row is on its way while this row's sums are waited for.
template <typename T, int kVectors, bool kLayer>
__global__ void __launch_bounds__(1024, kVectors == 1 && !kLayer ? 2 : 1) norm_forward_kernel(NormForwardParams<T> p) {
  constexpr bool kAhead = kVectors == 1;
  __shared__ SumScratch<1> scratch[2];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  unsigned int amax = 0;
  int turn = 0;
  Raw8<T> next[kVectors];
  const auto fetch = [&](int64_t row, int v) {
    const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
    if (column < p.cols && row < p.rows) next[v].load(p.x + row * p.cols + column);
  };
  if constexpr (kAhead) fetch(blockIdx.x, 0);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    float x[kVectors][8] = {};
    float total[1] = {0.0f};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      if constexpr (!kAhead) fetch(row, v);
      next[v].unpack(x[v]);
      if (p.residual != nullptr) {
        float r[8];
        load8(p.residual + row * p.cols + column, r);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[v][i] = rounded<T>(x[v][i] + r[i]);
        store8(p.sum + row * p.cols + column, x[v]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) total[0] += kLayer ? x[v][i] : x[v][i] * x[v][i];
    }
    if constexpr (kAhead) fetch(row + gridDim.x, 0);
    row_sums(total, scratch[turn]);
    turn ^= 1;
    float mean = 0.0f;
    if constexpr (kLayer) {
      mean = total[0] * inverse_cols;
      total[0] = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if ((int64_t{v} * blockDim.x + threadIdx.x) * 8 >= p.cols) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) total[0] += (x[v][i] - mean) * (x[v][i] - mean);
      }
      row_sums(total, scratch[turn]);
      turn ^= 1;
    }
    const float rstd = rsqrtf(total[0] * inverse_cols + p.eps);
    if (threadIdx.x == 0) {
      p.rstd[row] = rstd;
      if constexpr (kLayer) p.mean[row] = mean;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      Raw8<T> weight;
      weight.load(p.weight + column);
      store_normalized<T, kLayer>(p, row, column, weight, mean, rstd, x[v], amax);
    }
  }
  raise_amax(p.amax, amax);
}

// Vectors of a row that a warp of the block holds.
template <int kVectors>
__device__ __forceinline__ int vectors_of_warp(int warp, int vectors) {
  int held = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) held += min(max(vectors - v * static_cast<int>(blockDim.x) - warp * 32, 0), 32);
  return held;
}

// Of what a thread holds of a row: vectors `thread`, `thread` + `threads` ...
template <int kVectors>
__device__ __forceinline__ float squares_about(const float (&x)[kVectors][8], float mean, int threads, int thread,
                                               int vectors) {
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (v * threads + thread >= vectors) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += (x[v][i] - mean) * (x[v][i] - mean);
  }
  return sum;
}

// A row's mean and the sum of its squared distances from it: of a warp's part about its own mean first, then with one
// barrier of the whole. Values past the row are 0.
template <int kVectors>
__device__ __forceinline__ float2 row_moments(const float (&x)[kVectors][8], int vectors, float2* scratch) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int warp = thread >> 5, lane = thread & 31;
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[v][i];
  sum = warp_sum(sum);
  const float own_mean = sum / static_cast<float>(max(vectors_of_warp<kVectors>(warp, vectors), 1) * 8);
  const float apart = warp_sum(squares_about(x, own_mean, threads, thread, vectors));
  if (lane == 0) scratch[warp] = make_float2(sum, apart);
  __syncthreads();
  const float2 of_lane = lane * 32 < threads ? scratch[lane] : make_float2(0.0f, 0.0f);
  const float mean = warp_sum(of_lane.x) / static_cast<float>(vectors * 8);
  const auto held = lane * 32 < threads ? static_cast<float>(vectors_of_warp<kVectors>(lane, vectors) * 8) : 0.0f;
  const float distance = of_lane.x / held - mean;
  return make_float2(mean, warp_sum(held > 0.0f ? of_lane.y + held * distance * distance : 0.0f));
}

// Of norm_forward_row_kernel, by a thread's vectors; with four a row is a warp's.
template <int kVectors>
constexpr int kRowThreads = kVectors == 4   ? 128
                            : kVectors == 3 ? 256
                                            : 512;
template <typename T, int kVectors>
constexpr int kRowBlocks = sizeof(T) == 4 ? 1 : (kVectors == 4 ? 8 : (kVectors == 3 ? 5 : 3));

// As norm_forward_kernel, a row a block, or a row a warp of narrow ones: all of a thread's vectors are on their way at
// once, and other blocks of the SM work while these wait.
template <typename T, bool kLayer, int kVectors>
__global__ void __launch_bounds__(kRowThreads<kVectors>, kRowBlocks<T, kVectors>)
    norm_forward_row_kernel(NormForwardParams<T> p) {
  constexpr bool kWarp = kVectors == 4;
  constexpr bool kLate = kWarp || kLayer;  // the weight is read late, for want of registers
  __shared__ SumScratch<1> scratch;
  __shared__ float2 moments[32];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  const int across = kWarp ? 32 : static_cast<int>(blockDim.x), place = static_cast<int>(threadIdx.x) % across;
  const int64_t row = kWarp ? int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32 : int64_t{blockIdx.x};
  if (kWarp && row >= p.rows) return;
  const int cols = static_cast<int>(p.cols);
  const auto column_of = [&](int v) { return (v * across + place) * 8; };
  const auto fetch = [&](Raw8<T>(&to)[kVectors], const T* from) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (column_of(v) < cols) to[v].load(from + column_of(v));
  };
  Raw8<T> raw[kVectors], residual[kVectors], weight[kVectors];
  fetch(raw, p.x + row * cols);
  if (p.residual != nullptr) fetch(residual, p.residual + row * cols);
  if constexpr (!kLate) fetch(weight, p.weight);
  float x[kVectors][8] = {};
  float total[1] = {0.0f};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= cols) continue;
    raw[v].unpack(x[v]);
    if (p.residual != nullptr) {
      float r[8];
      residual[v].unpack(r);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[v][i] = rounded<T>(x[v][i] + r[i]);
      store8(p.sum + row * cols + column_of(v), x[v]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) total[0] += kLayer ? x[v][i] : x[v][i] * x[v][i];
  }
  float mean = 0.0f;
  if constexpr (kWarp) {
    total[0] = warp_sum(total[0]);
    if constexpr (kLayer) {
      mean = total[0] * inverse_cols;
      total[0] = warp_sum(squares_about(x, mean, across, place, cols / 8));
    }
  } else if constexpr (kLayer) {
    const float2 of = row_moments(x, cols / 8, moments);
    mean = of.x;
    total[0] = of.y;
  } else {
    row_sums(total, scratch);
  }
  const float rstd = rsqrtf(total[0] * inverse_cols + p.eps);
  if (place == 0) p.rstd[row] = rstd;
  if (kLayer && place == 0) p.mean[row] = mean;
  unsigned int amax = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= cols) continue;
    if constexpr (kLate) weight[v].load(p.weight + column_of(v));
    store_normalized<T, kLayer>(p, row, column_of(v), weight[v], mean, rstd, x[v], amax);
  }
  raise_amax(p.amax, amax);
}

}  // namespace mbb::trainer::cuda
