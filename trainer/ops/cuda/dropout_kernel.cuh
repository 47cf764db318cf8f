// Dropout, with what may stand around it: y = residual + dropout(x + bias). A warp walks parts of rows, of which the
// next one is on its way while random words of this one are drawn.
#pragma once

#include <cmath>

#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/by_width.cuh"
#include "trainer/ops/cuda/philox.cuh"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {

// Adds the bias of these columns, where there is one; sums stay fp32.
template <int kWidth, typename T>
__device__ __forceinline__ void add_bias(const T* bias, int64_t column, float (&x)[kWidth]) {
  if (bias == nullptr) return;
  float b[kWidth];
  load<kWidth>(bias + column, b);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] += b[i];
}

// The random words of the elements from `element` on; eight begin with a block of four.
template <int kWidth>
__device__ __forceinline__ void draw(const PhiloxKeys& keys, uint64_t sample, uint64_t element,
                                     uint32_t (&words)[kWidth]) {
  const PhiloxBlock low = keys.block(sample, element / 4);
  if constexpr (kWidth == 8) {
    const PhiloxBlock high = keys.block(sample, element / 4 + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = low.word[i], words[4 + i] = high.word[i];
  } else {
    words[0] = low.word[0];
#pragma unroll
    for (uint64_t i = 1; i < 4; ++i) words[0] = element % 4 == i ? low.word[i] : words[0];
  }
}

// What the host works out of a probability. A uniform is 24 bits of its word over 2^24, which is below the probability
// exactly when the word is below its 2^24 fold, rounded up, times 2^8. A value times 1 / (1 - probability) is as
// rounding it from double gives it: the factor's two parts have 48 bits together.
struct DropoutRule {
  float high = 1.0f, low = 0.0f;
  uint32_t last_dropped = 0;
  bool drops = false;

  explicit DropoutRule(double probability) : drops(probability > 0.0) {
    const double factor = 1.0 / (1.0 - probability);
    high = static_cast<float>(factor), low = static_cast<float>(factor - static_cast<double>(high));
    last_dropped = static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(probability * 0x1p24)) * 256 - 1);
  }
  __device__ __forceinline__ float kept(float value) const { return fmaf(value, high, value * low); }
};

// Parts of rows, as equal as whole vectors of a warp allow.
template <int kWidth>
constexpr int kDropoutVectors = kWidth == 8 ? 3 : 1;  // of a lane, a part
struct DropoutParts {
  uint32_t items, of_row, vectors, in_part;  // `vectors` of a row

  DropoutParts(int64_t rows, int64_t row_vectors, int most)
      : of_row(static_cast<uint32_t>((row_vectors + 32 * most - 1) / (32 * most))),
        vectors(static_cast<uint32_t>(row_vectors)) {
    items = static_cast<uint32_t>(rows) * of_row;
    in_part = (vectors + of_row * 32 - 1) / (of_row * 32) * 32;
  }
};

// Vectors of a part that a lane has, and what names their random words.
template <int kWidth, typename T, bool kResidual>
struct DropoutItem {
  static constexpr int kVectors = kDropoutVectors<kWidth>;
  RawValues<kWidth, T> x[kVectors], beside[kResidual ? kVectors : 1];
  uint32_t row, first, end;  // vectors of the row
  int32_t sample;
  int64_t place;

  __device__ __forceinline__ void fetch(const Dropout& p, const DropoutParts& parts, bool drops, const T* from,
                                        const T* residual, uint32_t item) {
    row = item / parts.of_row;
    const uint32_t begin = (item - row * parts.of_row) * parts.in_part;
    first = begin + (threadIdx.x & 31), end = min(begin + parts.in_part, parts.vectors);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (first + u * 32 >= end) break;
      const int64_t at = row * p.hidden + int64_t{first + u * 32} * kWidth;
      x[u].load(from + at);
      if constexpr (kResidual) beside[u].load(residual + at);
    }
    if (!drops) return;
    const uint32_t position = row / static_cast<uint32_t>(p.batch);
    sample = p.samples[row - position * static_cast<uint32_t>(p.batch)];
    place = p.at != nullptr ? p.at[p.first + position] : p.first + position;
  }

  __device__ __forceinline__ void write(const Dropout& p, const DropoutRule& rule, const PhiloxKeys& keys,
                                        const T* bias, T* y) const {
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (first + u * 32 >= end) break;
      const int64_t column = int64_t{first + u * 32} * kWidth;
      float value[kWidth];
      x[u].unpack(value);
      add_bias<kWidth>(bias, column, value);
      if (rule.drops) {
        uint32_t words[kWidth];
        draw<kWidth>(keys, static_cast<uint64_t>(sample), static_cast<uint64_t>(place * p.hidden + column), words);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) value[i] = words[i] <= rule.last_dropped ? 0.0f : rule.kept(value[i]);
      }
      if constexpr (kResidual) {
        float other[kWidth];
        beside[u].unpack(other);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) value[i] = other[i] + value[i];
      }
      store<kWidth>(y + row * p.hidden + column, value);
    }
  }
};

constexpr int kDropoutThreads = 256;
constexpr int dropout_blocks(bool residual) {  // of an SM
  return residual ? 2 : 3;
}
template <int kWidth, typename T, bool kResidual>
__global__ void __launch_bounds__(kDropoutThreads, sizeof(T) == 2 ? dropout_blocks(kResidual) : 1)
    dropout_kernel(Dropout p, DropoutRule rule, DropoutParts parts, const T* residual, const T* x, const T* bias,
                   T* y) {
  const uint32_t warps = gridDim.x * (kDropoutThreads / 32);
  uint32_t item = blockIdx.x * (kDropoutThreads / 32) + threadIdx.x / 32;
  if (item >= parts.items) return;
  DropoutItem<kWidth, T, kResidual> now, next;
  now.fetch(p, parts, rule.drops, x, residual, item);
  const auto step = rule.drops ? static_cast<uint64_t>(p.record[StepRecord::kStep]) : 0;
  PhiloxKeys keys(rng_mix(static_cast<uint64_t>(p.stream) ^ (step + kRngGamma)));
  keys.hold();
  for (;;) {
    item += warps;
    const bool more = item < parts.items;
    if (more) next.fetch(p, parts, rule.drops, x, residual, item);
    now.write(p, rule, keys, bias, y);
    if (!more) return;
    now = next;
  }
}

}  // namespace mbb::trainer::cuda
