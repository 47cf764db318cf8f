// RMSNorm and LayerNorm kernels: a block holds one row in registers and walks rows with a grid stride.
#pragma once

#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// `amax` holds a non-negative float's bits; nothing to raise when `to` is null.
__device__ __forceinline__ void raise_amax(float* to, unsigned int amax) {
  if (to == nullptr) return;
  amax = __reduce_max_sync(0xffffffffu, amax);
  if ((threadIdx.x & 31) == 0) atomicMax(reinterpret_cast<unsigned int*>(to), amax);
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

template <typename T>
struct NormForwardParams {
  const T *x, *residual, *weight, *bias;
  T *sum, *y;
  float *mean, *rstd, *amax;
  int64_t rows, cols;
  float eps, weight_offset;
};

template <typename T, int kVectors, bool kLayer>
__global__ void __launch_bounds__(kVectors == 4 ? 1024 : 512) norm_forward_kernel(NormForwardParams<T> p) {
  __shared__ float scratch[32];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  unsigned int amax = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    float x[kVectors][8];
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[v][i] = 0.0f;
        continue;
      }
      load8(p.x + row * p.cols + column, x[v]);
      if (p.residual != nullptr) {
        float r[8];
        load8(p.residual + row * p.cols + column, r);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[v][i] = rounded<T>(x[v][i] + r[i]);
        store8(p.sum + row * p.cols + column, x[v]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) total += kLayer ? x[v][i] : x[v][i] * x[v][i];
    }
    total = block_sum(total, scratch);
    float mean = 0.0f;
    if constexpr (kLayer) {
      mean = total * inverse_cols;
      total = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if ((int64_t{v} * blockDim.x + threadIdx.x) * 8 >= p.cols) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) total += (x[v][i] - mean) * (x[v][i] - mean);
      }
      total = block_sum(total, scratch);
    }
    const float rstd = rsqrtf(total * inverse_cols + p.eps);
    if (threadIdx.x == 0) {
      p.rstd[row] = rstd;
      if constexpr (kLayer) p.mean[row] = mean;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      float w[8], b[8] = {};
      load8(p.weight + column, w);
      if constexpr (kLayer) load8(p.bias + column, b);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[v][i] = rounded<T>((x[v][i] - mean) * rstd * (p.weight_offset + w[i]) + b[i]);
        amax = max(amax, __float_as_uint(fabsf(x[v][i])));
      }
      if (p.y != nullptr) store8(p.y + row * p.cols + column, x[v]);
    }
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

// x_hat = (x - mean) * rstd, g = dy * w: dx = rstd * (g - mean(g)[LayerNorm] - x_hat * mean(g * x_hat)).
// Where registers allow it (one vector a thread) the next row's x and dy are on their way while this row's sums are
// waited for.
template <typename T, int kVectors, bool kLayer>
__global__ void __launch_bounds__(1024) norm_backward_kernel(NormBackwardParams<T> p) {
  constexpr bool kAhead = kVectors == 1;
  __shared__ float scratch[2][32];
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  float dweight[kVectors][8] = {}, dbias[kLayer ? kVectors : 1][8] = {};
  unsigned int amax = 0;
  Raw8<T> next_x[kVectors], next_dy[kVectors];
  const auto fetch = [&](int64_t row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols || row >= p.rows) continue;
      next_x[v].load(p.x + row * p.cols + column);
      next_dy[v].load(p.dy + row * p.cols + column);
    }
  };
  if constexpr (kAhead) fetch(blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float rstd = p.rstd[row], mean = kLayer ? p.mean[row] : 0.0f;
    float x[kVectors][8], g[kVectors][8];
    if constexpr (!kAhead) fetch(row);
    Raw8<T> residual[kVectors];
    float dot = 0.0f, sum = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      next_x[v].unpack(x[v]);
      next_dy[v].unpack(g[v]);
      if (p.dresidual != nullptr) residual[v].load(p.dresidual + row * p.cols + column);
    }
    if constexpr (kAhead) fetch(row + gridDim.x);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      float w[8];
      load8(p.weight + column, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[v][i] = (x[v][i] - mean) * rstd;
        dweight[v][i] += g[v][i] * x[v][i];
        if constexpr (kLayer) dbias[v][i] += g[v][i];
        g[v][i] *= p.weight_offset + w[i];
        dot += g[v][i] * x[v][i];
        if constexpr (kLayer) sum += g[v][i];
      }
    }
    dot = block_sum(dot, scratch[0]) * inverse_cols;
    if constexpr (kLayer) sum = block_sum(sum, scratch[1]) * inverse_cols;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = (int64_t{v} * blockDim.x + threadIdx.x) * 8;
      if (column >= p.cols) continue;
      float r[8] = {};
      if (p.dresidual != nullptr) residual[v].unpack(r);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        r[i] = rounded<T>(r[i] + rstd * (g[v][i] - sum - x[v][i] * dot));
        amax = max(amax, __float_as_uint(fabsf(r[i])));
      }
      store8(p.dx + row * p.cols + column, r);
    }
  }
  store_partials<kVectors>(p.partials, p.cols, blockIdx.x, dweight);
  if constexpr (kLayer) store_partials<kVectors>(p.partials, p.cols, int64_t{gridDim.x} + blockIdx.x, dbias);
  raise_amax(p.amax, amax);
}

// 32 columns a block; 8 strands each sum every eighth partial row, then are added in strand order: always the same
// order.
__global__ void norm_weight_grad_kernel(const float* partials, int64_t count, int64_t cols, float* out,
                                        bool accumulate) {
  __shared__ float strands[8][33];
  const int lane = threadIdx.x & 31, strand = threadIdx.x >> 5;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0.0f;
  if (column < cols)
    for (int64_t row = strand; row < count; row += 8) sum += partials[row * cols + column];
  strands[strand][lane] = sum;
  __syncthreads();
  if (strand != 0 || column >= cols) return;
#pragma unroll
  for (int i = 1; i < 8; ++i) sum += strands[i][lane];
  out[column] = accumulate ? out[column] + sum : sum;
}

}  // namespace mbb::trainer::cuda
