// Backward of the norms: x_hat = (x - mean) * rstd, g = dy * w,
// dx = rstd * (g - mean(g)[LayerNorm] - x_hat * mean(g * x_hat)). What the weight and the bias get is summed by block,
// then over the blocks.
#pragma once

#include "trainer/ops/cuda/early_launch.cuh"
#include "trainer/ops/cuda/kernel_plan.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/norm_kernel.cuh"
#include "trainer/ops/cuda/wgmma.cuh"

namespace mbb::trainer::cuda {

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

template <int kVectors>
__device__ __forceinline__ void store_partials(float* partials, int64_t cols, int64_t row,
                                               const float (&values)[kVectors][8]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
    if (column < cols) store8(partials + row * cols + column, values[v]);
  }
}

struct NormRow {
  float rstd = 0.0f, mean = 0.0f;
};
template <bool kLayer, typename T>
__device__ __forceinline__ NormRow norm_row(const NormBackwardParams<T>& p, int row) {
  return row < p.rows ? NormRow{p.rstd[row], kLayer ? p.mean[row] : 0.0f} : NormRow{};
}

template <typename T>
__device__ __forceinline__ void weight_of(const NormBackwardParams<T>& p, int64_t column, float (&w)[8]) {
  load8(p.weight + column, w);
#pragma unroll
  for (float& value : w) value += p.weight_offset;
}

// x_hat and g of one vector from x and dy, and what they add to the sums. In bf16 the mean is taken off by the same
// instruction that scales.
template <typename T, bool kLayer>
__device__ __forceinline__ void add_gradient(float (&x)[8], float (&g)[8], const float (&w)[8], NormRow of,
                                             float (&dweight)[8], float (&dbias)[8], float* sums) {
  const float shift = -of.mean * of.rstd;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = kLayer && sizeof(T) == 2 ? fmaf(x[i], of.rstd, shift) : (kLayer ? x[i] - of.mean : x[i]) * of.rstd;
    dweight[i] = fmaf(g[i], x[i], dweight[i]);
    if constexpr (kLayer) dbias[i] += g[i];
    g[i] *= w[i];
    sums[0] = fmaf(g[i], x[i], sums[0]);
    if constexpr (kLayer) sums[1] += g[i];
  }
}

// dx of one vector from x_hat, g and the row's sums over its columns, and the gradient of the residual where there is
// one.
template <bool kLayer, typename T>
__device__ __forceinline__ void store_gradient(const NormBackwardParams<T>& p, T* to, const float (&x)[8],
                                               const float (&g)[8], const Raw8<T>& residual, float rstd,
                                               const float* means, unsigned int& amax) {
  const float dot = -means[0] * rstd, mean = kLayer ? -means[1] * rstd : 0.0f;
  float dx[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) dx[i] = fmaf(x[i], dot, kLayer ? fmaf(g[i], rstd, mean) : g[i] * rstd);
  if (p.dresidual != nullptr) {
    float r[8];
    residual.unpack(r);
#pragma unroll
    for (int i = 0; i < 8; ++i) dx[i] += r[i];
  }
  if (p.amax != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = max(amax, __float_as_uint(fabsf(rounded<T>(dx[i]))));
  }
  store8(to, dx);
}

// x and dy of a block's next rows on their way to shared memory by the copy engine: kRows neighbors a stage.
template <typename T, int kRows>
struct RowsAhead {
  uint4* slots;
  uint64_t* arrived;  // [stages]
  int stages, line;   // line: 16-byte vectors of a row
  int stage = 0;
  uint32_t turn = 0;

  // By one thread; nothing past the last row.
  __device__ __forceinline__ void fetch(const NormBackwardParams<T>& p, int row, int of) const {
    const int rows = min(kRows, static_cast<int>(p.rows) - row);
    if (rows <= 0) return;
    const auto bytes = static_cast<uint32_t>(rows * line * 16);
    const uint32_t barrier = shared_address(arrived + of);
    const uint4* const to = slots + of * 2 * kRows * line;
    barrier_expect(barrier, 2 * bytes);
    copy_run(shared_address(to), p.x + row * p.cols, bytes, barrier);
    copy_run(shared_address(to + kRows * line), p.dy + row * p.cols, bytes, barrier);
  }
  __device__ __forceinline__ void start(const NormBackwardParams<T>& p) const {
    for (int of = 0; of < stages; ++of) barrier_init(shared_address(arrived + of), 1);
    barriers_ready();
    for (int of = 0; of < stages; ++of) fetch(p, static_cast<int>(blockIdx.x + of * gridDim.x) * kRows, of);
  }
  __device__ __forceinline__ void wait() const { barrier_wait(shared_address(arrived + stage), turn); }
  __device__ __forceinline__ void take(int r, float (&x)[8], float (&dy)[8]) const {
    const uint4* const from = slots + (stage * 2 * kRows + r) * line;
    load8(reinterpret_cast<const T*>(from) + threadIdx.x * 8, x);
    load8(reinterpret_cast<const T*>(from + kRows * line) + threadIdx.x * 8, dy);
  }
  // Every thread has taken its part of this turn's rows.
  __device__ __forceinline__ void next(const NormBackwardParams<T>& p, int row) {
    if (threadIdx.x == 0) fetch(p, row + stages * static_cast<int>(gridDim.x) * kRows, stage);
    if (++stage < stages) return;
    stage = 0;
    turn ^= 1;
  }
};

// A row a block, a vector a thread, kRows rows between two barriers.
template <typename T, bool kLayer, int kRows, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) norm_backward_kernel(NormBackwardParams<T> p, int stages) {
  constexpr int kSums = kLayer ? 2 : 1;  // of a row
  extern __shared__ __align__(128) uint4 ahead[];
  __shared__ SumScratch<kSums * kRows> scratch[2];
  alignas(8) __shared__ uint64_t arrived[kNormStages];
  const int column = static_cast<int>(threadIdx.x) * 8, cols = static_cast<int>(p.cols), all = static_cast<int>(p.rows);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  RowsAhead<T, kRows> rows{ahead, arrived, stages, cols * int{sizeof(T)} / 16};
  if (threadIdx.x == 0) rows.start(p);
  float w[8] = {}, dweight[1][8] = {}, dbias[1][8] = {};
  if (column < cols) weight_of(p, column, w);
  const int first = static_cast<int>(blockIdx.x) * kRows, step = static_cast<int>(gridDim.x) * kRows;
  NormRow ahead_of[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) ahead_of[r] = norm_row<kLayer>(p, first + r);
  unsigned int amax = 0;
  int turn = 0;
  __syncthreads();  // the barriers are there
  for (int row = first; row < all; row += step) {
    float x[kRows][8] = {}, g[kRows][8] = {}, sums[kRows * kSums] = {};
    Raw8<T> residual[kRows];
    NormRow of[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) of[r] = ahead_of[r], ahead_of[r] = norm_row<kLayer>(p, row + step + r);
    const auto fetch_residual = [&](int r) {
      if (p.dresidual != nullptr && column < cols) residual[r].load(p.dresidual + int64_t{row + r} * cols + column);
    };
    if (kRows == 1) fetch_residual(0);
    rows.wait();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (column >= cols || row + r >= all) continue;
      rows.take(r, x[r], g[r]);
      add_gradient<T, kLayer>(x[r], g[r], w, of[r], dweight[0], dbias[0], sums + r * kSums);
    }
    row_sums<kRows * kSums>(sums, scratch[turn]);
    turn ^= 1;
    rows.next(p, row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (column >= cols || row + r >= all) continue;
      if (kRows > 1) fetch_residual(r);
      float means[kSums];
#pragma unroll
      for (int n = 0; n < kSums; ++n) means[n] = sums[r * kSums + n] * inverse_cols;
      store_gradient<kLayer>(p, p.dx + int64_t{row + r} * cols + column, x[r], g[r], residual[r], of[r].rstd, means,
                             amax);
    }
  }
  launch_dependents();
  store_partials<1>(p.partials, cols, blockIdx.x, dweight);
  if constexpr (kLayer) store_partials<1>(p.partials, cols, int64_t{gridDim.x} + blockIdx.x, dbias);
  raise_amax(p.amax, amax);
}

// Rows too wide for that: kVectors vectors a thread.
template <typename T, bool kLayer, int kVectors>
__global__ void __launch_bounds__(1024, 1) norm_backward_wide_kernel(NormBackwardParams<T> p) {
  constexpr int kSums = kLayer ? 2 : 1;
  __shared__ SumScratch<kSums> scratch[2];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  const int cols = static_cast<int>(p.cols), all = static_cast<int>(p.rows);
  float dweight[kVectors][8] = {}, dbias[kVectors][8] = {};
  unsigned int amax = 0;
  int turn = 0;
  const auto column_of = [](int v) { return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8; };
  for (int row = static_cast<int>(blockIdx.x); row < all; row += static_cast<int>(gridDim.x)) {
    const int64_t at = int64_t{row} * cols;
    float x[kVectors][8], g[kVectors][8], sums[kSums] = {};
    Raw8<T> raw_x[kVectors], raw_dy[kVectors], residual[kVectors];
    const NormRow of = norm_row<kLayer>(p, row);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= cols) continue;
      raw_x[v].load(p.x + at + column_of(v));
      raw_dy[v].load(p.dy + at + column_of(v));
      if (p.dresidual != nullptr) residual[v].load(p.dresidual + at + column_of(v));
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= cols) continue;
      float w[8];
      weight_of(p, column_of(v), w);
      raw_x[v].unpack(x[v]);
      raw_dy[v].unpack(g[v]);
      add_gradient<T, kLayer>(x[v], g[v], w, of, dweight[v], dbias[v], sums);
    }
    row_sums<kSums>(sums, scratch[turn]);
    turn ^= 1;
#pragma unroll
    for (int n = 0; n < kSums; ++n) sums[n] *= inverse_cols;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= cols) continue;
      store_gradient<kLayer>(p, p.dx + at + column_of(v), x[v], g[v], residual[v], of.rstd, sums, amax);
    }
  }
  launch_dependents();
  store_partials<kVectors>(p.partials, p.cols, blockIdx.x, dweight);
  if constexpr (kLayer) store_partials<kVectors>(p.partials, p.cols, int64_t{gridDim.x} + blockIdx.x, dbias);
  raise_amax(p.amax, amax);
}

__device__ __forceinline__ void add4(float4& to, const float4& x) {
  to.x += x.x, to.y += x.y, to.z += x.z, to.w += x.w;
}

// 32 columns of the weight, or in the grid's second row of the bias, a block of 256 threads: 8 of four columns by 32
// strands of partial rows, then the strands of a column: always the same order. Launched before the rows are done.
__global__ void __launch_bounds__(256) norm_weight_grad_kernel(const float* partials, int64_t count, int64_t cols,
                                                               float* dweight, float* dbias, bool accumulate) {
  alignas(16) __shared__ float strands[8][32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int64_t first = int64_t{blockIdx.x} * 32, column = first + (thread & 7) * 4;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  partials += blockIdx.y * count * cols + column;
  wait_for_launch_before();
  if (column < cols) {
#pragma unroll 8
    for (int64_t row = thread >> 3; row < count; row += 32)
      add4(sum, *reinterpret_cast<const float4*>(partials + row * cols));
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2)
    add4(sum, make_float4(__shfl_xor_sync(0xffffffffu, sum.x, offset), __shfl_xor_sync(0xffffffffu, sum.y, offset),
                          __shfl_xor_sync(0xffffffffu, sum.z, offset), __shfl_xor_sync(0xffffffffu, sum.w, offset)));
  if (lane < 8) *reinterpret_cast<float4*>(&strands[warp][lane * 4]) = sum;
  __syncthreads();
  if (thread >= 32 || first + thread >= cols) return;
  float total = strands[0][thread];
#pragma unroll
  for (int w = 1; w < 8; ++w) total += strands[w][thread];
  float* const out = (blockIdx.y == 0 ? dweight : dbias) + first + thread;
  *out = accumulate ? *out + total : total;
}

}  // namespace mbb::trainer::cuda
