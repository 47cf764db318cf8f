// RMSNorm and LayerNorm kernels: a block holds one row in registers; but for norm_forward_row_kernel it walks rows with
// a grid stride.
#pragma once

#include "trainer/ops/cuda/kernel_plan.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// `amax` holds a non-negative float's bits; nothing to raise when `to` is null.
__device__ __forceinline__ void raise_amax(float* to, unsigned int amax) {
  if (to == nullptr) return;
  amax = __reduce_max_sync(0xffffffffu, amax);
  auto* const bits = reinterpret_cast<unsigned int*>(to);
  if ((threadIdx.x & 31) == 0 && amax > __ldcg(bits)) atomicMax(bits, amax);
}

template <int kVectors>
__device__ __forceinline__ void store_partials(float* partials, int64_t cols, int64_t row,
                                               const float (&values)[kVectors][8]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
    if (column < cols) store8(partials + row * cols + column, values[v]);
  }
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

// As norm_forward_kernel, a row a block, or a row a warp of narrow ones: all of a thread's vectors are on their way at
// once, and other blocks of the SM work while these wait.
template <typename T, bool kLayer, bool kWarp>
__global__ void __launch_bounds__(kWarp ? 128 : 512, kWarp || sizeof(T) == 4 ? 1 : 3)
    norm_forward_row_kernel(NormForwardParams<T> p) {
  constexpr int kVectors = kWarp ? 4 : 2;
  constexpr bool kLate = kWarp || kLayer;  // the weight is read late, for want of registers
  __shared__ SumScratch<1> scratch[2];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  const int across = kWarp ? 32 : static_cast<int>(blockDim.x), place = static_cast<int>(threadIdx.x) % across;
  const int64_t row = kWarp ? int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32 : int64_t{blockIdx.x};
  if (kWarp && row >= p.rows) return;
  const int cols = static_cast<int>(p.cols);
  const auto column_of = [&](int v) { return (v * across + place) * 8; };
  const auto sum_of_row = [&](float(&of)[1], int turn) {
    if constexpr (kWarp)
      of[0] = warp_sum(of[0]);
    else
      row_sums(of, scratch[turn]);
  };
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
  sum_of_row(total, 0);
  float mean = 0.0f;
  if constexpr (kLayer) {
    mean = total[0] * inverse_cols;
    total[0] = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= cols) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) total[0] += (x[v][i] - mean) * (x[v][i] - mean);
    }
    sum_of_row(total, 1);
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

template <typename T>
struct NormBackwardParams {
  const T *x, *dy, *dresidual, *weight;
  const float *mean, *rstd;
  T* dx;
  float* partials;  // [grid, cols] of dweight, then [grid, cols] of dbias
  float* amax;
  int64_t rows, cols;
  float weight_offset;
};

struct NormRow {
  float rstd, sum, dot;
};

// dx of a row from x_hat and g, see norm_backward_kernel.
template <typename T, int kVectors>
__device__ __forceinline__ void store_gradient(const NormBackwardParams<T>& p, int64_t row,
                                               const float (&x)[kVectors][8], const float (&g)[kVectors][8],
                                               const Raw8<T> (&residual)[kVectors], NormRow of, unsigned int& amax) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
    if (column >= p.cols) continue;
    float r[8] = {};
    if (p.dresidual != nullptr) residual[v].unpack(r);
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] += of.rstd * (g[v][i] - of.sum - x[v][i] * of.dot);
    if (p.amax != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) amax = max(amax, __float_as_uint(fabsf(rounded<T>(r[i]))));
    }
    store8(p.dx + row * p.cols + column, r);
  }
}

// The next rows' x and dy on their way to shared memory, where a thread finds only what it copied itself: behind the
// barrier of the rows' sums their place is free for others. kRows rows a stage, a grid apart.
template <typename T, int kRows>
struct RowsAhead {
  static constexpr int kStages = norm_stages_ahead(sizeof(T), kRows), kParts = sizeof(T) / 2;
  uint4* slots;
  int stage = 0;

  __device__ __forceinline__ uint4* slot(int of, int r, int part) const {
    return slots +
           (((of * kRows + r) * 2 * kParts + part) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
  }
  // Into the stage that the oldest rows have left; called for all rows, past the last one too.
  __device__ __forceinline__ void fetch(const NormBackwardParams<T>& p, int row, int of) {
    const int column = static_cast<int>(threadIdx.x) * 8;
#pragma unroll
    for (int r = 0; r < kRows; ++r, row += static_cast<int>(gridDim.x)) {
      if (row >= static_cast<int>(p.rows) || column >= static_cast<int>(p.cols)) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int64_t at = int64_t{row} * p.cols + column + part * (8 / kParts);
        copy16_async(shared_address(slot(of, r, part)), p.x + at, true);
        copy16_async(shared_address(slot(of, r, kParts + part)), p.dy + at, true);
      }
    }
    copies_commit();
  }
  __device__ __forceinline__ void start(const NormBackwardParams<T>& p) {
#pragma unroll
    for (int of = 0; of < kStages; ++of) fetch(p, static_cast<int>(blockIdx.x + of * kRows * gridDim.x), of);
  }
  __device__ __forceinline__ void wait() const {
    copies_wait<kStages - 1>();
  }
  __device__ __forceinline__ void take(int r, Raw8<T>& x, Raw8<T>& dy) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      x.part[part] = *slot(stage, r, part);
      dy.part[part] = *slot(stage, r, kParts + part);
    }
  }
  __device__ __forceinline__ void next(const NormBackwardParams<T>& p, int row) {
    fetch(p, row + kStages * kRows * static_cast<int>(gridDim.x), stage);
  }
};

// Of rows that lie a grid apart.
template <bool kLayer, typename T, int kRows>
__device__ __forceinline__ void load_statistics(const NormBackwardParams<T>& p, int row, float (&rstd)[kRows],
                                                float (&mean)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r, row += static_cast<int>(gridDim.x)) {
    if (row >= static_cast<int>(p.rows)) return;
    rstd[r] = p.rstd[row];
    if constexpr (kLayer) mean[r] = p.mean[row];
  }
}

// x_hat and g of one vector from x and dy, and what they add to the sums.
template <bool kLayer>
__device__ __forceinline__ void add_gradient(float (&x)[8], float (&g)[8], const float (&w)[8], float weight_offset,
                                             float mean, float rstd, float (&dweight)[8], float (&dbias)[8],
                                             float* sums) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = (x[i] - mean) * rstd;
    dweight[i] += g[i] * x[i];
    if constexpr (kLayer) dbias[i] += g[i];
    g[i] *= weight_offset + w[i];
    sums[0] += g[i] * x[i];
    if constexpr (kLayer) sums[1] += g[i];
  }
}

// x_hat = (x - mean) * rstd, g = dy * w: dx = rstd * (g - mean(g)[LayerNorm] - x_hat * mean(g * x_hat)).
// With one vector a thread the next rows are on their way while these are worked on. Two rows at once wait for one
// barrier and one chain of sums.
template <typename T, int kVectors, bool kLayer, int kRows>
__global__ void __launch_bounds__(kRows == 1 ? 1024 : kPairThreads, 1) norm_backward_kernel(NormBackwardParams<T> p) {
  extern __shared__ uint4 ahead[];
  constexpr bool kAhead = kVectors == 1, kKeepsWeight = kAhead && sizeof(T) == 2;
  constexpr int kSums = kLayer ? 2 : 1;  // of a row
  __shared__ SumScratch<kSums * kRows> scratch[RowsAhead<T, kRows>::kStages];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  float dweight[kVectors][8] = {}, dbias[kVectors][8] = {};
  unsigned int amax = 0;
  RowsAhead<T, kRows> rows{ahead};
  Raw8<T> raw_x[kVectors], raw_dy[kVectors], weight[kVectors], residual[kVectors];
  float next_rstd[kRows] = {}, next_mean[kRows] = {};
  const int cols = static_cast<int>(p.cols), all = static_cast<int>(p.rows), grid = static_cast<int>(gridDim.x);
  const auto column_of = [](int v) { return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8; };
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (kKeepsWeight && column_of(v) < cols) weight[v].load(p.weight + column_of(v));
  const auto fetch = [&](Raw8<T>(&to)[kVectors], const T* from, int64_t row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (column_of(v) < cols) to[v].load(from + row * p.cols + column_of(v));
  };
  if constexpr (kAhead) rows.start(p);
  load_statistics<kLayer>(p, static_cast<int>(blockIdx.x), next_rstd, next_mean);
  for (int first = static_cast<int>(blockIdx.x); first < all; first += kRows * grid) {
    float x[kRows][kVectors][8], g[kRows][kVectors][8], sums[kRows * kSums] = {}, rstd[kRows], mean[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rstd[r] = next_rstd[r], mean[r] = next_mean[r];
    if (kRows == 1 && p.dresidual != nullptr) fetch(residual, p.dresidual, first);
    if constexpr (!kAhead) fetch(raw_x, p.x, first), fetch(raw_dy, p.dy, first);
    load_statistics<kLayer>(p, first + kRows * grid, next_rstd, next_mean);
    if constexpr (kAhead) rows.wait();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r * grid >= all) continue;
      if constexpr (kAhead) rows.take(r, raw_x[0], raw_dy[0]);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column_of(v) >= cols) continue;
        float w[8];
        if constexpr (!kKeepsWeight) weight[v].load(p.weight + column_of(v));
        weight[v].unpack(w);
        raw_x[v].unpack(x[r][v]);
        raw_dy[v].unpack(g[r][v]);
        add_gradient<kLayer>(x[r][v], g[r][v], w, p.weight_offset, mean[r], rstd[r], dweight[v], dbias[v],
                             sums + r * kSums);
      }
    }
    row_sums<kRows * kSums>(sums, scratch[rows.stage]);
    if constexpr (kAhead) rows.next(p, first);
    rows.stage = rows.stage + 1 == rows.kStages ? 0 : rows.stage + 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r * grid;
      if (row >= all) continue;
      if (kRows > 1 && p.dresidual != nullptr) fetch(residual, p.dresidual, row);
      const float sum = kLayer ? sums[r * kSums + kSums - 1] * inverse_cols : 0.0f;
      store_gradient<T, kVectors>(p, row, x[r], g[r], residual, {rstd[r], sum, sums[r * kSums] * inverse_cols}, amax);
    }
  }
  store_partials<kVectors>(p.partials, p.cols, blockIdx.x, dweight);
  if constexpr (kLayer) store_partials<kVectors>(p.partials, p.cols, int64_t{gridDim.x} + blockIdx.x, dbias);
  raise_amax(p.amax, amax);
}

// kColumns of the weight, or in the grid's second row of the bias, a block; each of its strands sums every
// (1024 / kColumns)-th partial row, then warps add a column's: always the same order.
template <int kColumns>
__global__ void __launch_bounds__(1024) norm_weight_grad_kernel(const float* partials, int64_t count, int64_t cols,
                                                                float* dweight, float* dbias, bool accumulate) {
  constexpr int kStrands = 1024 / kColumns;
  __shared__ float strands[32][kColumns + 1];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int64_t first = int64_t{blockIdx.x} * kColumns, column = first + thread % kColumns;
  float* const out = blockIdx.y == 0 ? dweight : dbias;
  partials += blockIdx.y * count * cols;
  float sum = 0.0f;
  if (column < cols) {
#pragma unroll 8
    for (int64_t row = thread / kColumns; row < count; row += kStrands) sum += partials[row * cols + column];
  }
#pragma unroll
  for (int offset = kColumns; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane < kColumns) strands[warp][lane] = sum;
  __syncthreads();
  if (warp >= kColumns) return;
  sum = warp_sum(strands[lane][warp]);
  if (lane == 0 && first + warp < cols) out[first + warp] = accumulate ? out[first + warp] + sum : sum;
}

}  // namespace mbb::trainer::cuda
