// AdamW on 8 elements a thread; each state's storage form is a template argument.
#pragma once

#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// 64 random bits for (seed, step, element): two rounds of a 64-bit finalizer over the packed key.
__device__ __forceinline__ uint64_t counter_bits(uint32_t seed, uint32_t step, uint64_t element) {
  uint64_t x = element * 0x9e3779b97f4a7c15ull + ((uint64_t{seed} << 32) | step);
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

// Rounds to bf16 away from zero with the probability of the dropped fraction. NaN and infinity keep their class.
__device__ __forceinline__ float stochastic_bf16(float x, uint32_t random16) {
  return fabsf(x) < INFINITY ? __uint_as_float((__float_as_uint(x) + random16) & 0xffff0000u) : x;
}

struct AdamFactors {
  float rate, beta1, beta2, inverse_bias1, inverse_sqrt_bias2, epsilon, gradient;
};

__device__ __forceinline__ AdamFactors factors(const AdamBucket& b, const float* record, const float* scale) {
  return {record[0], b.beta1, b.beta2, 1.0f / record[1], rsqrtf(record[2]), b.epsilon, scale[0]};
}

__device__ __forceinline__ float approximate_sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// kApproximate: root and quotient within 3 units in the last place of fp32, where all results are rounded to bf16.
template <bool kApproximate = false>
__device__ __forceinline__ void adam_update(const AdamFactors& f, const BucketPiece& piece, float gradient, float& p,
                                            float& m, float& v) {
  const float g = gradient * f.gradient;
  m = f.beta1 * m + (1.0f - f.beta1) * g;
  v = f.beta2 * v + (1.0f - f.beta2) * g * g;
  const float mean = m * f.inverse_bias1;
  const float deviation = (kApproximate ? approximate_sqrt(v) : sqrtf(v)) * f.inverse_sqrt_bias2 + f.epsilon;
  const float direction = kApproximate ? __fdividef(mean, deviation) : mean / deviation;
  p -= f.rate * piece.rate_factor * (direction + piece.weight_decay * p);
}

// bf16 weight and the 16 bits below it: weight is the master rounded half up, the remainder a signed difference.
__device__ __forceinline__ float join_remainder(float weight, uint32_t low) {
  return __uint_as_float(__float_as_uint(weight) +
                         static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low))));
}
__device__ __forceinline__ void split_remainder(float master, uint32_t& high, uint32_t& low) {
  const uint32_t bits = __float_as_uint(master);
  high = (bits + 0x8000u) >> 16;
  low = (bits - (high << 16)) & 0xffffu;
}

template <MasterForm kForm, typename Moment, typename Gradient>
struct AdamState {
  static constexpr bool kAllBf16 = kForm == MasterForm::kStochastic && sizeof(Moment) == 2;
  bf16* weight;
  Moment *exp_avg, *exp_avg_sq;
  const Gradient* gradient;
};

// One element by itself: tails and unaligned buckets.
template <MasterForm kForm, typename Moment, typename Gradient>
__device__ void adam_one(const AdamBucket& b, const AdamState<kForm, Moment, Gradient>& s, const AdamFactors& f,
                         const BucketPiece& piece, uint32_t step, int64_t at) {
  float m = to_float(s.exp_avg[at]), v = to_float(s.exp_avg_sq[at]), p;
  if constexpr (kForm == MasterForm::kF32) {
    p = b.master[at];
  } else {
    p = to_float(s.weight[at]);
  }
  if constexpr (kForm == MasterForm::kRemainder) p = join_remainder(p, b.remainder[at]);
  adam_update<AdamState<kForm, Moment, Gradient>::kAllBf16>(f, piece, to_float(s.gradient[at]), p, m, v);
  const uint64_t index = static_cast<uint64_t>(b.first_index + at);
  const uint32_t random = static_cast<uint32_t>(counter_bits(b.seed, step, index / 2) >> (32 * (index & 1)));
  if constexpr (sizeof(Moment) == 2) {
    m = stochastic_bf16(m, random >> 16);
    v = stochastic_bf16(v, random >> 16);
  }
  s.exp_avg[at] = from_float<Moment>(m);
  s.exp_avg_sq[at] = from_float<Moment>(v);
  if constexpr (kForm == MasterForm::kF32) {
    b.master[at] = p;
    if (s.weight != nullptr) s.weight[at] = from_float<bf16>(p);
  } else if constexpr (kForm == MasterForm::kStochastic) {
    s.weight[at] = from_float<bf16>(stochastic_bf16(p, random & 0xffffu));
  } else {
    uint32_t high, low;
    split_remainder(p, high, low);
    s.weight[at] = from_float<bf16>(__uint_as_float(high << 16));
    b.remainder[at] = static_cast<uint16_t>(low);
  }
}

// Eight elements of one piece.
template <MasterForm kForm, typename Moment, typename Gradient>
__device__ __forceinline__ void adam_eight(const AdamBucket& b, const AdamState<kForm, Moment, Gradient>& s,
                                           const AdamFactors& f, const BucketPiece& piece, uint32_t step, int64_t at) {
  float p[8], m[8], v[8], g[8];
  load8(s.gradient + at, g);
  load8(s.exp_avg + at, m);
  load8(s.exp_avg_sq + at, v);
  if constexpr (kForm == MasterForm::kF32) {
    load8(b.master + at, p);
  } else {
    load8(s.weight + at, p);
  }
  if constexpr (kForm == MasterForm::kRemainder) {
    const uint4 raw = *reinterpret_cast<const uint4*>(b.remainder + at);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) p[i] = join_remainder(p[i], words[i / 2] >> (16 * (i & 1)));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    adam_update<AdamState<kForm, Moment, Gradient>::kAllBf16>(f, piece, g[i], p[i], m[i], v[i]);
  if constexpr (kForm == MasterForm::kStochastic || sizeof(Moment) == 2) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      // 32 bits an element: low half rounds the weight, high half both moments (each is unbiased by itself).
      const uint64_t random = counter_bits(b.seed, step, static_cast<uint64_t>(b.first_index + at + i) / 2);
      const uint32_t mine[2] = {static_cast<uint32_t>(random), static_cast<uint32_t>(random >> 32)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kForm == MasterForm::kStochastic) p[i + j] = stochastic_bf16(p[i + j], mine[j] & 0xffffu);
        if constexpr (sizeof(Moment) == 2) {
          m[i + j] = stochastic_bf16(m[i + j], mine[j] >> 16);
          v[i + j] = stochastic_bf16(v[i + j], mine[j] >> 16);
        }
      }
    }
  }
  store8(s.exp_avg + at, m);
  store8(s.exp_avg_sq + at, v);
  if constexpr (kForm == MasterForm::kF32) {
    store8(b.master + at, p);
    if (s.weight != nullptr) store8(s.weight + at, p);
  } else if constexpr (kForm == MasterForm::kStochastic) {
    store8(s.weight + at, p);
  } else {
    uint32_t high[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) split_remainder(p[i], high[i], low[i]);
    *reinterpret_cast<uint4*>(s.weight + at) = make_uint4(high[0] | (high[1] << 16), high[2] | (high[3] << 16),
                                                          high[4] | (high[5] << 16), high[6] | (high[7] << 16));
    *reinterpret_cast<uint4*>(b.remainder + at) =
        make_uint4(low[0] | (low[1] << 16), low[2] | (low[3] << 16), low[4] | (low[5] << 16), low[6] | (low[7] << 16));
  }
}

// kThreads: 256 where the kernel has the device for itself; 1024, one block an SM, where it must keep to few SMs.
template <MasterForm kForm, typename Moment, typename Gradient, int kThreads>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamBucket b, const float* record, const float* scale, bool vectors) {
  if (scale[2] != 0.0f) return;
  const AdamFactors f = factors(b, record, scale);
  const auto step = static_cast<uint32_t>(record[3]);
  const AdamState<kForm, Moment, Gradient> s{static_cast<bf16*>(b.weight), static_cast<Moment*>(b.exp_avg),
                                             static_cast<Moment*>(b.exp_avg_sq),
                                             static_cast<const Gradient*>(b.gradient)};
  int piece = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * 8;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8; at < b.count; at += stride) {
    while (piece + 1 < b.piece_count && at >= b.pieces[piece].end) ++piece;
    const BucketPiece here = b.pieces[piece];
    if (vectors && at + 8 <= b.count && (at + 8 <= here.end || piece + 1 == b.piece_count)) {
      adam_eight(b, s, f, here, step, at);
      continue;
    }
    int inner = piece;
    for (int64_t i = at; i < min(at + 8, b.count); ++i) {
      while (inner + 1 < b.piece_count && i >= b.pieces[inner].end) ++inner;
      adam_one(b, s, f, b.pieces[inner], step, i);
    }
  }
}

// Sum over the block in a fixed tree; thread 0 has it. 256 threads.
__device__ __forceinline__ double block_sum_double(double x) {
  __shared__ double values[256];
  values[threadIdx.x] = x;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  return values[0];
}

// Fixed grid of kNormPartials blocks: the partition of the sum depends on count alone. A vector's sum is fp32, the rest
// double.
template <typename T>
__global__ void __launch_bounds__(256) square_sum_kernel(const T* x, int64_t count, const BucketPiece* pieces,
                                                         int piece_count, double* partials, bool vectors) {
  double sum = 0.0;
  int piece = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * 8;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8; at < count; at += stride) {
    while (piece + 1 < piece_count && at >= pieces[piece].end) ++piece;
    if (vectors && at + 8 <= count && (at + 8 <= pieces[piece].end || piece + 1 == piece_count)) {
      float values[8], squares = 0.0f;
      load8(x + at, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += values[i] * values[i];
      sum += static_cast<double>(squares) * pieces[piece].norm_weight;
      continue;
    }
    int inner = piece;
    for (int64_t i = at; i < min(at + 8, count); ++i) {
      while (inner + 1 < piece_count && i >= pieces[inner].end) ++inner;
      sum += static_cast<double>(to_float(x[i])) * to_float(x[i]) * pieces[inner].norm_weight;
    }
  }
  sum = block_sum_double(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void sum_partials_kernel(const double* partials, int count, double* total) {
  double sum = 0.0;
  for (int at = threadIdx.x; at < count; at += 256) sum += partials[at];
  sum = block_sum_double(sum);
  if (threadIdx.x == 0) *total = sum;
}

__global__ void grad_scale_kernel(const double* squares, int64_t count, const double* loss, double clip, float* scale) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += squares[i];
  const double tokens = loss[1], norm = sqrt(sum) / tokens;
  const bool finite = isfinite(norm) && tokens > 0.0;
  const double factor = clip > 0.0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
  scale[0] = finite ? static_cast<float>(factor / tokens) : 0.0f;
  scale[1] = static_cast<float>(norm);
  scale[2] = finite ? 0.0f : 1.0f;
}

}  // namespace mbb::trainer::cuda
