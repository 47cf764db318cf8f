// AdamW on states of any types, an element a thread: moments of two types, and moments and masters with a scale for
// each tensor's part of the shard. Scaled states are made twice: once for their largest value, once to be stored by it.
#pragma once

#include <cfloat>

#include "trainer/ops/cuda/block_format.cuh"
#include "trainer/ops/cuda/optimizer_kernel.cuh"

namespace mbb::trainer::cuda {

__device__ __forceinline__ float largest_of(StateElement e) {
  return e == StateElement::kF16 ? 65504.0f : e == StateElement::kE4m3 ? 448.0f : 57344.0f;
}

// An element as it is stored, times its inverse scale.
__device__ __forceinline__ float load_state(StateElement e, const void* from, int64_t at, float inverse) {
  const auto* const byte = static_cast<const uint8_t*>(from);
  switch (e) {
    case StateElement::kF32: return static_cast<const float*>(from)[at];
    case StateElement::kBf16: return to_float(static_cast<const bf16*>(from)[at]);
    case StateElement::kF16: return __half2float(static_cast<const __half*>(from)[at]) * inverse;
    case StateElement::kE4m3: return e4m3_value(byte[at]) * inverse;
    case StateElement::kE5m2: return e5m2_value(byte[at]) * inverse;
  }
  return 0.0f;
}

// `square`: what is not zero is kept above zero, since it divides.
__device__ __forceinline__ void store_state(StateElement e, void* to, int64_t at, float x, float scale, bool square,
                                            uint32_t random16) {
  const bool above = square && x != 0.0f;
  if (e == StateElement::kF32) {
    static_cast<float*>(to)[at] = x;
  } else if (e == StateElement::kBf16) {
    static_cast<bf16*>(to)[at] = from_float<bf16>(stochastic_bf16(x, random16));
  } else if (e == StateElement::kF16) {
    const float scaled = x * scale;
    const uint16_t code =
        __half_as_ushort(__float2half_rn(isnan(scaled) ? scaled : fminf(fmaxf(scaled, -65504.0f), 65504.0f)));
    static_cast<uint16_t*>(to)[at] = above && code == 0 ? 1 : code;
  } else {
    const uint8_t code =
        __nv_cvt_float_to_fp8(x * scale, __NV_SATFINITE, e == StateElement::kE4m3 ? __NV_E4M3 : __NV_E5M2);
    static_cast<uint8_t*>(to)[at] = above && code == 0 ? 1 : code;
  }
}

__device__ __forceinline__ float scale_of(StateElement e, float amax) {
  const float scale = amax > 0.0f ? largest_of(e) / amax : 1.0f;
  return isinf(scale) ? FLT_MAX : scale;
}

// Rows of `inverse` and `amax`: first moment, second moment, fp16 master.
enum StateRow { kFirst, kSecond, kMasterRow };

struct NewState {
  float p, m, v;
};

__device__ __forceinline__ NewState new_state(const AdamStates& s, const AdamFactors& f, const BucketPiece& piece,
                                              int64_t at) {
  const AdamBucket& b = s.bucket;
  const auto inverse = [&](StateRow row) {
    return s.inverse == nullptr ? 1.0f : s.inverse[row * s.ranges + piece.range];
  };
  NewState x{};
  x.m = load_state(s.exp_avg, b.exp_avg, at, inverse(kFirst));
  x.v = load_state(s.exp_avg_sq, b.exp_avg_sq, at, inverse(kSecond));
  switch (b.form) {
    case MasterForm::kF32: x.p = b.master[at]; break;
    case MasterForm::kScaled: x.p = load_state(StateElement::kF16, s.scaled_master, at, inverse(kMasterRow)); break;
    case MasterForm::kRemainder:
      x.p = join_remainder(to_float(static_cast<const bf16*>(b.weight)[at]), b.remainder[at]);
      break;
    case MasterForm::kStochastic: x.p = to_float(static_cast<const bf16*>(b.weight)[at]); break;
  }
  const float gradient = b.gradients == Element::kF32 ? static_cast<const float*>(b.gradient)[at]
                                                      : to_float(static_cast<const bf16*>(b.gradient)[at]);
  adam_update(f, piece, gradient, x.p, x.m, x.v);
  return x;
}

// Calls visit(element, its piece) for this thread's elements that belong to a tensor.
template <typename Visit>
__device__ __forceinline__ void for_elements(const AdamBucket& b, const Visit& visit) {
  int piece = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < b.count; at += stride) {
    while (piece + 1 < b.piece_count && at >= b.pieces[piece].end) ++piece;
    if (b.pieces[piece].range >= 0) visit(at, b.pieces[piece]);
  }
}

// amax[3, ranges]: largest magnitudes after the update; zero before.
__global__ void __launch_bounds__(256) adam_amax_kernel(AdamStates s, const float* record, const float* scale) {
  if (scale[2] != 0.0f) return;
  const AdamFactors f = factors(s.bucket, record, scale);
  int range = -1;
  float most[3] = {};
  const auto give = [&] {
    for (int row = 0; row < 3; ++row)
      if (range >= 0) atomic_amax(&s.amax[row * s.ranges + range], most[row]);
  };
  for_elements(s.bucket, [&](int64_t at, const BucketPiece& piece) {
    if (piece.range != range) {
      give();
      range = piece.range;
      most[0] = most[1] = most[2] = 0.0f;
    }
    const NewState x = new_state(s, f, piece, at);
    const float values[3] = {x.m, x.v, x.p};
    for (int row = 0; row < 3; ++row) most[row] = fmaxf(most[row], fabsf(values[row]));
  });
  // One atomic a warp where all of it ends in one tensor.
  if (!__all_sync(0xffffffffu, range == __shfl_sync(0xffffffffu, range, 0))) return give();
  for (float& value : most) value = warp_max(value);
  if (threadIdx.x % 32 == 0) give();
}

__global__ void __launch_bounds__(256) adam_states_kernel(AdamStates s, const float* record, const float* scale) {
  if (scale[2] != 0.0f) return;
  const AdamBucket& b = s.bucket;
  const AdamFactors f = factors(b, record, scale);
  const auto step = static_cast<uint32_t>(record[3]);
  for_elements(b, [&](int64_t at, const BucketPiece& piece) {
    const NewState x = new_state(s, f, piece, at);
    const auto scale_in = [&](StateRow row, StateElement e) {
      return s.inverse == nullptr ? 1.0f : scale_of(e, s.amax[row * s.ranges + piece.range]);
    };
    const uint64_t index = static_cast<uint64_t>(b.first_index + at);
    const uint32_t random = static_cast<uint32_t>(counter_bits(b.seed, step, index / 2) >> (32 * (index & 1)));
    store_state(s.exp_avg, b.exp_avg, at, x.m, scale_in(kFirst, s.exp_avg), false, random >> 16);
    store_state(s.exp_avg_sq, b.exp_avg_sq, at, x.v, scale_in(kSecond, s.exp_avg_sq), true, random >> 16);
    auto* const weight = static_cast<bf16*>(b.weight);
    switch (b.form) {
      case MasterForm::kF32:
        b.master[at] = x.p;
        if (weight != nullptr) weight[at] = from_float<bf16>(x.p);
        break;
      case MasterForm::kScaled:
        store_state(StateElement::kF16, s.scaled_master, at, x.p, scale_in(kMasterRow, StateElement::kF16), false, 0);
        weight[at] = from_float<bf16>(x.p);
        break;
      case MasterForm::kStochastic: weight[at] = from_float<bf16>(stochastic_bf16(x.p, random & 0xffffu)); break;
      case MasterForm::kRemainder: {
        uint32_t high, low;
        split_remainder(x.p, high, low);
        weight[at] = from_float<bf16>(__uint_as_float(high << 16));
        b.remainder[at] = static_cast<uint16_t>(low);
        break;
      }
    }
  });
}

// Behind the update, which still reads the old ones: inverse scales of the shard's tensors.
__global__ void adam_inverse_kernel(AdamStates s, const float* scale) {
  if (scale[2] != 0.0f) return;
  for (int i = static_cast<int>(threadIdx.x); i < s.bucket.piece_count; i += static_cast<int>(blockDim.x)) {
    const int range = s.bucket.pieces[i].range;
    if (range < 0) continue;
    const auto set = [&](StateRow row, StateElement e) {
      if (e != StateElement::kF32 && e != StateElement::kBf16)
        s.inverse[row * s.ranges + range] = 1.0f / scale_of(e, s.amax[row * s.ranges + range]);
    };
    set(kFirst, s.exp_avg);
    set(kSecond, s.exp_avg_sq);
    if (s.bucket.form == MasterForm::kScaled) set(kMasterRow, StateElement::kF16);
  }
}

}  // namespace mbb::trainer::cuda
