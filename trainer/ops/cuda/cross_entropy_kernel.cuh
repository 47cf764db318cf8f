// Cross entropy kernels: one block a row of logits, whose second pass finds part of the row in L2.
// kWidth is how many logits a thread reads at once: 8, or 1 where rows are not 16-byte vectors.
#pragma once

#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

template <typename T>
struct CrossEntropyParams {
  const T* logits;
  T* gradient;  // may be the logits themselves
  const int32_t* targets;
  int64_t vocab, first, real;  // `real` columns of this slice count, the rest is padding
};

// A running maximum with the sum of exponentials relative to it.
struct SoftmaxSum {
  float max = -INFINITY;
  float sum = 0.0f;
};

template <int kWidth, typename T>
__device__ __forceinline__ void load_logits(const T* row, int64_t column, int64_t real, float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    load8(row + column, x);
    if (column + 8 > real) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + i >= real) x[i] = -INFINITY;
    }
  } else {
    x[0] = column < real ? to_float(row[column]) : -INFINITY;
  }
}

template <int kWidth, typename T>
__device__ SoftmaxSum row_softmax_sum(const T* row, int64_t vocab, int64_t real, float* scratch) {
  SoftmaxSum mine;
  for (int64_t column = threadIdx.x * kWidth; column < vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, real, x);
    float top = x[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) top = fmaxf(top, x[i]);
    if (top == -INFINITY) continue;
    if (top > mine.max) {
      mine.sum *= __expf(mine.max - top);
      mine.max = top;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) mine.sum += __expf(x[i] - mine.max);
  }
  const float top = block_max(mine.max, scratch);
  const float sum = block_sum(mine.max == -INFINITY ? 0.0f : mine.sum * __expf(mine.max - top), scratch);
  return {top, sum};
}

// (softmax - onehot) * weight; a weight of 0 (no target) gives exact zeros.
template <int kWidth, typename T>
__device__ void write_gradient(const T* row, T* to, int64_t vocab, int64_t real, int64_t target, float max,
                               float inverse_sum, float weight) {
  for (int64_t column = threadIdx.x * kWidth; column < vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, real, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      x[i] = weight == 0.0f ? 0.0f : (__expf(x[i] - max) * inverse_sum - (column + i == target ? 1.0f : 0.0f)) * weight;
    if constexpr (kWidth == 8)
      store8(to + column, x);
    else
      to[column] = from_float<T>(x[0]);
  }
}

template <int kWidth, typename T>
__global__ void ce_row_max_kernel(CrossEntropyParams<T> p, float* max) {
  __shared__ float scratch[32];
  const T* row = p.logits + int64_t{blockIdx.x} * p.vocab;
  float top = -INFINITY;
  for (int64_t column = threadIdx.x * kWidth; column < p.vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, p.real, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) top = fmaxf(top, x[i]);
  }
  top = block_max(top, scratch);
  if (threadIdx.x == 0) max[blockIdx.x] = top;
}

// target_logit: relative to the maximum; 0 where the target is another rank's or none.
template <int kWidth, typename T>
__global__ void ce_sum_exp_kernel(CrossEntropyParams<T> p, const float* max, float* sum_exp, float* target_logit) {
  __shared__ float scratch[32];
  const T* row = p.logits + int64_t{blockIdx.x} * p.vocab;
  const float top = max[blockIdx.x];
  float sum = 0.0f;
  for (int64_t column = threadIdx.x * kWidth; column < p.vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, p.real, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += __expf(x[i] - top);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  const int64_t target = p.targets[blockIdx.x] - p.first;
  const bool mine = p.targets[blockIdx.x] >= 0 && target >= 0 && target < p.real;
  sum_exp[blockIdx.x] = sum;
  target_logit[blockIdx.x] = mine ? to_float(row[target]) - top : 0.0f;
}

template <int kWidth, typename T>
__global__ void ce_gradient_kernel(CrossEntropyParams<T> p, const float* max, const float* sum_exp) {
  const int64_t row = int64_t{blockIdx.x} * p.vocab;
  const int32_t id = p.targets[blockIdx.x];
  write_gradient<kWidth>(p.logits + row, p.gradient + row, p.vocab, p.real, id < 0 ? -1 : id - p.first, max[blockIdx.x],
                         1.0f / sum_exp[blockIdx.x], id < 0 ? 0.0f : 1.0f);
}

template <int kWidth, typename T>
__global__ void ce_fused_kernel(CrossEntropyParams<T> p, float* sum_exp, float* target) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * p.vocab;
  const int32_t id = p.targets[blockIdx.x];
  const float target_logit = id >= 0 ? to_float(p.logits[row + id]) : 0.0f;
  const SoftmaxSum s = row_softmax_sum<kWidth>(p.logits + row, p.vocab, p.real, scratch);
  if (threadIdx.x == 0) {
    sum_exp[blockIdx.x] = s.sum;
    target[blockIdx.x] = id < 0 ? 0.0f : target_logit - s.max;
  }
  __syncthreads();  // every thread has read the target's logit before its gradient overwrites it
  write_gradient<kWidth>(p.logits + row, p.gradient + row, p.vocab, p.real, id, s.max, 1.0f / s.sum,
                         id < 0 ? 0.0f : 1.0f);
}

// As ce_fused_kernel for wide bf16 rows of 16-byte vectors: one block an SM keeps the first `kept` vectors of its row
// in shared memory, so that only the rest is read again (from L2).
inline constexpr int kWideThreads = 1024;
__global__ void __launch_bounds__(kWideThreads, 1)
    ce_fused_wide_kernel(CrossEntropyParams<bf16> p, int kept, float* sum_exp, float* target) {
  extern __shared__ __align__(16) uint4 row_part[];
  __shared__ float scratch[32];
  const bf16* const row = p.logits + int64_t{blockIdx.x} * p.vocab;
  const auto* const from = reinterpret_cast<const uint4*>(row);
  auto* const to = reinterpret_cast<uint4*>(p.gradient + int64_t{blockIdx.x} * p.vocab);
  const int vectors = static_cast<int>(p.vocab / 8);
  const int32_t id = p.targets[blockIdx.x];
  const float target_logit = id >= 0 ? to_float(row[id]) : 0.0f;
  SoftmaxSum mine;
  constexpr int kUnroll = 4;
  for (int base = static_cast<int>(threadIdx.x); base < vectors; base += kWideThreads * kUnroll) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (base + u * kWideThreads < vectors) raw[u] = from[base + u * kWideThreads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = base + u * kWideThreads;
      if (at >= vectors) continue;
      if (at < kept) row_part[at] = raw[u];
      float x[8];
      load_logits<8>(reinterpret_cast<const bf16*>(&raw[u]), 0, p.real - int64_t{at} * 8, x);
      float top = x[0];
#pragma unroll
      for (int i = 1; i < 8; ++i) top = fmaxf(top, x[i]);
      if (top == -INFINITY) continue;
      if (top > mine.max) {
        mine.sum *= __expf(mine.max - top);
        mine.max = top;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) mine.sum += __expf(x[i] - mine.max);
    }
  }
  const float top = block_max(mine.max, scratch);
  const float sum = block_sum(mine.max == -INFINITY ? 0.0f : mine.sum * __expf(mine.max - top), scratch);
  if (threadIdx.x == 0) {
    sum_exp[blockIdx.x] = sum;
    target[blockIdx.x] = id < 0 ? 0.0f : target_logit - top;
  }
  __syncthreads();  // every thread has read the target's logit before its gradient overwrites it
  const float inverse = 1.0f / sum, weight = id < 0 ? 0.0f : 1.0f;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kWideThreads) {
    const uint4 raw = at < kept ? row_part[at] : from[at];
    float x[8];
    load_logits<8>(reinterpret_cast<const bf16*>(&raw), 0, p.real - int64_t{at} * 8, x);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = weight == 0.0f ? 0.0f : __expf(x[i] - top) * inverse - (at * 8 + i == id ? 1.0f : 0.0f);
    store8(reinterpret_cast<bf16*>(to + at), x);
  }
}

// One block: total[0] (+)= sum of log(sum_exp) - target, total[1] (+)= rows with a target, in doubles and a fixed
// order.
__global__ void ce_loss_kernel(const float* sum_exp, const float* target_logit, const int32_t* targets, int64_t rows,
                               double* total, bool accumulate) {
  __shared__ double losses[256], counts[256];
  double loss = 0.0, count = 0.0;
  for (int64_t r = threadIdx.x; r < rows; r += 256) {
    if (targets[r] < 0) continue;
    loss += log(static_cast<double>(sum_exp[r])) - static_cast<double>(target_logit[r]);
    count += 1.0;
  }
  losses[threadIdx.x] = loss;
  counts[threadIdx.x] = count;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x != 0) return;
  total[0] = accumulate ? total[0] + losses[0] : losses[0];
  total[1] = accumulate ? total[1] + counts[0] : counts[0];
}

}  // namespace mbb::trainer::cuda
