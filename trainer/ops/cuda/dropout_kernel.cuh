// Dropout, with what may stand around it: y = residual + dropout(x + bias). A warp takes a part of a row, or of two.
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

// Where a part lies, and what names its random words.
struct DropoutPlace {
  uint32_t row, first, end;          // vectors of the row that a lane has: first, first + 32, ... below end
  uint64_t sample = 0, element = 0;  // of the row's first element

  __device__ __forceinline__ DropoutPlace(const Dropout& p, const DropoutParts& parts, uint32_t item)
      : row(item / parts.of_row) {
    const uint32_t begin = (item - row * parts.of_row) * parts.in_part;
    first = begin + (threadIdx.x & 31), end = min(begin + parts.in_part, parts.vectors);
  }
  __device__ __forceinline__ void name(const Dropout& p) {
    const uint32_t position = row / static_cast<uint32_t>(p.batch);
    const int64_t place = p.at != nullptr ? p.at[p.first + position] : p.first + position;
    sample = static_cast<uint64_t>(int64_t{p.samples[row - position * static_cast<uint32_t>(p.batch)]});
    element = static_cast<uint64_t>(place * p.hidden);
  }
};

// Random words of a lane's vectors.
template <int kWidth>
struct DropoutWords {
  PhiloxKeys keys;
  uint64_t name, first;  // of the sample; the lane's first element
  uint32_t high;
  PhiloxSample sample;

  __device__ __forceinline__ DropoutWords(const PhiloxKeys& of, const DropoutPlace& at)
      : keys(of),
        name(at.sample),
        first(at.element + uint64_t{at.first} * kWidth),
        high(static_cast<uint32_t>(first / 4 >> 32)),
        sample(keys.of_sample(name, high)) {}

  // A bit of each element of vector u: whether it is kept.
  __device__ __forceinline__ uint32_t kept(int u, uint32_t last_dropped) {
    const uint64_t element = first + static_cast<uint64_t>(u) * 32 * kWidth, block = element / 4;
    if (static_cast<uint32_t>(block >> 32) != high) {
      high = static_cast<uint32_t>(block >> 32);
      sample = keys.of_sample(name, high);
    }
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < (kWidth + 3) / 4; ++i) {  // eight begin with a block of four
      const PhiloxBlock words = keys.block(sample, static_cast<uint32_t>(block) + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) bits |= words.word[e] > last_dropped ? 1u << (i * 4 + e) : 0u;
    }
    return kWidth == 1 ? bits >> element % 4 : bits;
  }
};

constexpr int kDropoutThreads = 128;
// A warp a part of a row, its values on their way at once; a vector's words are used as they are drawn.
template <int kWidth, typename T, bool kResidual>
__global__ void __launch_bounds__(kDropoutThreads, sizeof(T) == 2 ? (kResidual ? 8 : 10) : 4)
    dropout_kernel(Dropout p, DropoutRule rule, DropoutParts parts, const T* residual, const T* x, const T* bias,
                   T* y) {
  constexpr int kVectors = kDropoutVectors<kWidth>;
  const uint32_t item = blockIdx.x * (kDropoutThreads / 32) + threadIdx.x / 32;
  if (item >= parts.items) return;
  DropoutPlace at(p, parts, item);
  const int64_t begin = at.row * p.hidden;
  RawValues<kWidth, T> raw[kVectors], beside[kResidual ? kVectors : 1];
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (at.first + u * 32 >= at.end) break;
    raw[u].load(x + begin + int64_t{at.first + u * 32} * kWidth);
    if constexpr (kResidual) beside[u].load(residual + begin + int64_t{at.first + u * 32} * kWidth);
  }
  if (rule.drops) at.name(p);
  const auto step = rule.drops ? static_cast<uint64_t>(p.record[StepRecord::kStep]) : 0;
  DropoutWords<kWidth> words(PhiloxKeys(rng_mix(static_cast<uint64_t>(p.stream) ^ (step + kRngGamma))), at);
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (at.first + u * 32 >= at.end) break;
    const int64_t column = int64_t{at.first + u * 32} * kWidth;
    float value[kWidth];
    raw[u].unpack(value);
    add_bias<kWidth>(bias, column, value);
    if (rule.drops) {
      const uint32_t kept = words.kept(u, rule.last_dropped);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value[i] = (kept >> i & 1) != 0 ? rule.kept(value[i]) : 0.0f;
    }
    if constexpr (kResidual) {
      float other[kWidth];
      beside[u].unpack(other);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value[i] = other[i] + value[i];
    }
    store<kWidth>(y + begin + column, value);
  }
}

// Whether a position's samples go in pairs, and into dropout_pair_kernel's grid.
inline bool dropout_pairs(const Dropout& p) {
  constexpr int64_t kMost = 65535;
  return p.batch % 2 == 0 && p.batch > 0 && p.batch / 2 <= kMost && p.seq > 0 && p.seq <= kMost && p.hidden > 0 &&
         p.hidden < int64_t{1} << 31;
}
// Dropout alone. A warp takes a part of two rows of one position, which share what random words have in common. The
// grid: parts of a row, pairs of samples, positions.
__global__ void __launch_bounds__(32, 32)
    dropout_pair_kernel(Dropout p, DropoutRule rule, DropoutParts parts, const bf16* x, bf16* y) {
  constexpr int kVectors = kDropoutVectors<8>;
  const uint32_t begin = blockIdx.x * parts.in_part, end = min(begin + parts.in_part, parts.vectors);
  const uint32_t first = begin + threadIdx.x, sample = blockIdx.y * 2, position = blockIdx.z;
  const int64_t start = (position * p.batch + sample) * p.hidden + first * 8;
  uint4 raw[2][kVectors];
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (first + u * 32 >= end) break;
      raw[r][u] = *reinterpret_cast<const uint4*>(x + start + r * p.hidden + u * 256);
    }
  const int64_t place = p.at != nullptr ? p.at[p.first + position] : p.first + position;
  const auto step = static_cast<uint64_t>(p.record[StepRecord::kStep]);
  const PhiloxKeys keys(rng_mix(static_cast<uint64_t>(p.stream) ^ (step + kRngGamma)));
  const uint64_t block0 = static_cast<uint64_t>(place * p.hidden + first * 8) / 4;
  auto high = static_cast<uint32_t>(block0 >> 32);
  PhiloxSample samples[2];
  const auto name = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      samples[r] = keys.of_sample(static_cast<uint64_t>(int64_t{p.samples[sample + r]}), high);
  };
  name();
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (first + u * 32 >= end) break;
    const uint64_t block = block0 + u * 64;
    if (static_cast<uint32_t>(block >> 32) != high) high = static_cast<uint32_t>(block >> 32), name();
    uint32_t kept[2] = {};  // a bit of each element
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      PhiloxBlock words[2];
      keys.blocks(samples, static_cast<uint32_t>(block) + i, words);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        kept[e / 4] |= words[e / 4].word[e % 4] > rule.last_dropped ? 1u << (i * 4 + e % 4) : 0u;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value[8];
      load8(reinterpret_cast<const bf16*>(&raw[r][u]), value);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = (kept[r] >> i & 1) != 0 ? rule.kept(value[i]) : 0.0f;
      store8(y + start + r * p.hidden + u * 256, value);
    }
  }
}

}  // namespace mbb::trainer::cuda
