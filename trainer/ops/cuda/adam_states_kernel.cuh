// AdamW on states of any types, 8 elements a thread: moments of two types, and moments and masters with a scale for
// each tensor's part of the shard. Scaled states are made twice: once for their largest value, once to be stored by it.
#pragma once

#include <cfloat>
#include <type_traits>

#include "trainer/ops/cuda/block_format.cuh"
#include "trainer/ops/cuda/optimizer_kernel.cuh"

namespace mbb::trainer::cuda {

// A block walks spans of this many tiles of 8 elements a thread; few tiles hold more than one tensor.
constexpr int kSpanTiles = 16, kTile = 256 * 8;

__device__ __forceinline__ float largest_of(StateElement e) {
  return e == StateElement::kF16 ? 65504.0f : e == StateElement::kE4m3 ? 448.0f : 57344.0f;
}
__device__ __forceinline__ int size_of(StateElement e) {
  return e == StateElement::kF32 ? 4 : e == StateElement::kBf16 || e == StateElement::kF16 ? 2 : 1;
}
__device__ __forceinline__ bool has_scale(StateElement e) {
  return e != StateElement::kF32 && e != StateElement::kBf16;
}

// kWidth (8 or 1) elements as they lie in memory: loaded early, unpacked when needed.
template <int kWidth>
struct RawState {
  uint32_t word[kWidth];

  __device__ __forceinline__ void load(int size, const void* base, int64_t at) {
    const auto* const from = static_cast<const uint8_t*>(base) + at * size;
    if constexpr (kWidth == 1) {
      word[0] = size == 1 ? *from : size == 2 ? *reinterpret_cast<const uint16_t*>(from) : as_word(from);
    } else if (size == 1) {
      const uint2 raw = *reinterpret_cast<const uint2*>(from);
      word[0] = raw.x, word[1] = raw.y;
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half == 1 && size == 2) break;
        const uint4 raw = reinterpret_cast<const uint4*>(from)[half];
        word[4 * half] = raw.x, word[4 * half + 1] = raw.y, word[4 * half + 2] = raw.z, word[4 * half + 3] = raw.w;
      }
    }
  }
  __device__ __forceinline__ void store(int size, void* base, int64_t at) const {
    auto* const to = static_cast<uint8_t*>(base) + at * size;
    if constexpr (kWidth == 1) {
      if (size == 1) *to = static_cast<uint8_t>(word[0]);
      if (size == 2) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word[0]);
      if (size == 4) *reinterpret_cast<uint32_t*>(to) = word[0];
    } else if (size == 1) {
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half == 1 && size == 2) break;
        reinterpret_cast<uint4*>(to)[half] =
            make_uint4(word[4 * half], word[4 * half + 1], word[4 * half + 2], word[4 * half + 3]);
      }
    }
  }
  __device__ __forceinline__ uint32_t byte(int i) const {
    return (word[i / 4] >> (8 * (i & 3))) & 0xffu;
  }
  __device__ __forceinline__ uint32_t half(int i) const {
    return (word[i / 2] >> (16 * (i & 1))) & 0xffffu;
  }
  // Elements come in order.
  __device__ __forceinline__ void put_byte(int i, uint32_t x) {
    word[i / 4] = (i & 3) == 0 ? x : word[i / 4] | (x << (8 * (i & 3)));
  }
  __device__ __forceinline__ void put_half(int i, uint32_t x) {
    word[i / 2] = (i & 1) == 0 ? x : word[i / 2] | (x << 16);
  }

 private:
  __device__ __forceinline__ static uint32_t as_word(const uint8_t* from) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
};

// Stored elements times their inverse scale.
template <int kWidth>
__device__ __forceinline__ void unpack(StateElement e, const RawState<kWidth>& raw, float inverse,
                                       float (&to)[kWidth]) {
  const auto each = [&](auto&& value) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = value(i);
  };
  switch (e) {
    case StateElement::kF32: return each([&](int i) { return __uint_as_float(raw.word[i]); });
    case StateElement::kBf16: return each([&](int i) { return __uint_as_float(raw.half(i) << 16); });
    case StateElement::kF16:
      return each([&](int i) { return __half2float(__ushort_as_half(static_cast<uint16_t>(raw.half(i)))) * inverse; });
    case StateElement::kE4m3:
      return each([&](int i) { return e4m3_value(static_cast<uint8_t>(raw.byte(i))) * inverse; });
    case StateElement::kE5m2:
      return each([&](int i) { return e5m2_value(static_cast<uint8_t>(raw.byte(i))) * inverse; });
  }
}

// `square`: what is not zero is kept above zero, since it divides. `random`: 32 bits an element, of which bf16 takes
// the high half.
template <int kWidth>
__device__ __forceinline__ RawState<kWidth> pack(StateElement e, const float (&x)[kWidth], float scale, bool square,
                                                 const uint32_t (&random)[kWidth]) {
  RawState<kWidth> raw;
  const auto raised = [&](int i, uint32_t code) { return square && x[i] != 0.0f && code == 0 ? 1u : code; };
  const auto each = [&](auto&& put) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) put(i);
  };
  switch (e) {
    case StateElement::kF32: each([&](int i) { raw.word[i] = __float_as_uint(x[i]); }); break;
    case StateElement::kBf16:
      each([&](int i) {
        raw.put_half(i, __bfloat16_as_ushort(from_float<bf16>(stochastic_bf16(x[i], random[i] >> 16))));
      });
      break;
    case StateElement::kF16:
      each([&](int i) {
        const float scaled = x[i] * scale, kept = fminf(fmaxf(scaled, -65504.0f), 65504.0f);
        raw.put_half(i, raised(i, __half_as_ushort(__float2half_rn(isnan(scaled) ? scaled : kept))));
      });
      break;
    case StateElement::kE4m3:
      each([&](int i) { raw.put_byte(i, raised(i, __nv_cvt_float_to_fp8(x[i] * scale, __NV_SATFINITE, __NV_E4M3))); });
      break;
    case StateElement::kE5m2:
      each([&](int i) { raw.put_byte(i, raised(i, __nv_cvt_float_to_fp8(x[i] * scale, __NV_SATFINITE, __NV_E5M2))); });
      break;
  }
  return raw;
}

__device__ __forceinline__ float scale_of(StateElement e, float amax) {
  const float scale = amax > 0.0f ? largest_of(e) / amax : 1.0f;
  return isinf(scale) ? FLT_MAX : scale;
}

// kFp8: gradients in fp32 and moments in E4M3 and E5M2, known when compiling: registers hold what there is, no
// branches.
template <bool kFp8>
__device__ __forceinline__ AdamStates known(AdamStates s) {
  if constexpr (kFp8) {
    s.bucket.gradients = Element::kF32;
    s.exp_avg = StateElement::kE4m3, s.exp_avg_sq = StateElement::kE5m2;
  }
  return s;
}

// Rows of `inverse` and `amax`: first moment, second moment, fp16 master.
enum StateRow { kFirst, kSecond, kMasterRow };

// What an update reads; without kMaster p is none of it.
template <MasterForm kForm, bool kMaster, int kWidth>
struct StoredStates {
  RawState<kWidth> gradient, first, second, master, low;

  __device__ __forceinline__ void load(const AdamStates& s, int64_t at) {
    const AdamBucket& b = s.bucket;
    gradient.load(b.gradients == Element::kF32 ? 4 : 2, b.gradient, at);
    first.load(size_of(s.exp_avg), b.exp_avg, at);
    second.load(size_of(s.exp_avg_sq), b.exp_avg_sq, at);
    if constexpr (!kMaster) return;
    if constexpr (kForm == MasterForm::kF32)
      master.load(4, b.master, at);
    else
      master.load(2, kForm == MasterForm::kScaled ? s.scaled_master : b.weight, at);
    if constexpr (kForm == MasterForm::kRemainder) low.load(2, b.remainder, at);
  }

  // The states after the update.
  __device__ __forceinline__ void update(const AdamStates& s, const AdamFactors& f, const BucketPiece& piece,
                                         float (&p)[kWidth], float (&m)[kWidth], float (&v)[kWidth]) const {
    const auto inverse = [&](StateRow row) {
      return s.inverse == nullptr ? 1.0f : s.inverse[row * s.ranges + piece.range];
    };
    float g[kWidth];
    unpack(s.bucket.gradients == Element::kF32 ? StateElement::kF32 : StateElement::kBf16, gradient, 1.0f, g);
    unpack(s.exp_avg, first, inverse(kFirst), m);
    unpack(s.exp_avg_sq, second, inverse(kSecond), v);
    if constexpr (kMaster) {
      if constexpr (kForm == MasterForm::kF32)
        unpack(StateElement::kF32, master, 1.0f, p);
      else if constexpr (kForm == MasterForm::kScaled)
        unpack(StateElement::kF16, master, inverse(kMasterRow), p);
      else
        unpack(StateElement::kBf16, master, 1.0f, p);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (!kMaster) p[i] = 0.0f;
      if constexpr (kMaster && kForm == MasterForm::kRemainder) p[i] = join_remainder(p[i], low.half(i));
      adam_update(f, piece, g[i], p[i], m[i], v[i]);
    }
  }
};

// Calls visit(how many, first element, their piece) for this thread's elements that belong to a tensor: eight of one
// piece where there are as many, else one.
template <typename Visit>
__device__ __forceinline__ void for_elements(const AdamBucket& b, bool vectors, const Visit& visit) {
  constexpr int64_t kSpan = int64_t{kSpanTiles} * kTile;
  for (int64_t span = blockIdx.x * kSpan; span < b.count; span += gridDim.x * kSpan) {
    int piece = 0;  // the first that ends behind the span's begin, or the last
    for (int last = b.piece_count - 1; piece < last;) {
      const int middle = (piece + last) / 2;
      if (span >= b.pieces[middle].end)
        piece = middle + 1;
      else
        last = middle;
    }
    const int64_t end = min(span + kSpan, b.count);
    for (int64_t at = span + int64_t{threadIdx.x} * 8; at < end; at += kTile) {
      while (piece + 1 < b.piece_count && at >= b.pieces[piece].end) ++piece;
      if (vectors && at + 8 <= b.count && (at + 8 <= b.pieces[piece].end || piece + 1 == b.piece_count)) {
        if (b.pieces[piece].range >= 0) visit(std::integral_constant<int, 8>{}, at, b.pieces[piece]);
        continue;
      }
      int inner = piece;
      for (int64_t i = at; i < min(at + 8, b.count); ++i) {
        while (inner + 1 < b.piece_count && i >= b.pieces[inner].end) ++inner;
        if (b.pieces[inner].range >= 0) visit(std::integral_constant<int, 1>{}, i, b.pieces[inner]);
      }
    }
  }
}

// amax[3, ranges]: largest magnitudes after the update; zero before.
template <bool kScaledMaster, bool kFp8>
__global__ void __launch_bounds__(256, kScaledMaster ? 3
                                       : kFp8        ? 8
                                                     : 5)
    adam_amax_kernel(AdamStates of, const float* record, const float* scale, bool vectors) {
  if (scale[2] != 0.0f) return;
  const AdamStates s = known<kFp8>(of);
  const AdamFactors f = factors(s.bucket, record, scale);
  int range = -1;
  float most[3] = {};
  const auto give = [&] {
    for (int row = 0; row < 3; ++row) {
      if (range < 0) continue;
      float* const slot = &s.amax[row * s.ranges + range];
      if (most[row] > __ldcg(slot)) atomic_amax(slot, most[row]);
    }
  };
  for_elements(s.bucket, vectors, [&](auto width, int64_t at, const BucketPiece& piece) {
    constexpr int kWidth = decltype(width)::value;
    StoredStates<MasterForm::kScaled, kScaledMaster, kWidth> stored;
    stored.load(s, at);
    if (piece.range != range) {
      give();
      range = piece.range;
      most[0] = most[1] = most[2] = 0.0f;
    }
    float p[kWidth], m[kWidth], v[kWidth];
    stored.update(s, f, piece, p, m, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      most[kFirst] = fmaxf(most[kFirst], fabsf(m[i]));
      most[kSecond] = fmaxf(most[kSecond], fabsf(v[i]));
      if constexpr (kScaledMaster) most[kMasterRow] = fmaxf(most[kMasterRow], fabsf(p[i]));
    }
  });
  // One atomic a warp where all of it ends in one tensor.
  if (!__all_sync(0xffffffffu, range == __shfl_sync(0xffffffffu, range, 0))) return give();
  for (float& value : most) value = warp_max(value);
  if (threadIdx.x % 32 == 0) give();
}

// The weight, and the master behind it.
template <MasterForm kForm, int kWidth>
__device__ __forceinline__ void store_master(const AdamStates& s, int64_t at, const BucketPiece& piece,
                                             float (&p)[kWidth], const uint32_t (&random)[kWidth]) {
  const AdamBucket& b = s.bucket;
  if constexpr (kForm == MasterForm::kF32) pack(StateElement::kF32, p, 1.0f, false, random).store(4, b.master, at);
  if constexpr (kForm == MasterForm::kScaled) {
    const float scale = scale_of(StateElement::kF16, s.amax[kMasterRow * s.ranges + piece.range]);
    pack(StateElement::kF16, p, scale, false, random).store(2, s.scaled_master, at);
  }
  if (b.weight == nullptr) return;
  RawState<kWidth> weight, low;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kForm == MasterForm::kStochastic) p[i] = stochastic_bf16(p[i], random[i] & 0xffffu);
    if constexpr (kForm == MasterForm::kRemainder) {
      uint32_t high, below;
      split_remainder(p[i], high, below);
      p[i] = __uint_as_float(high << 16);
      low.put_half(i, below);
    }
    weight.put_half(i, __bfloat16_as_ushort(from_float<bf16>(p[i])));
  }
  weight.store(2, b.weight, at);
  if constexpr (kForm == MasterForm::kRemainder) low.store(2, b.remainder, at);
}

// kDraws: a state is rounded stochastically.
template <MasterForm kForm, bool kDraws, bool kFp8>
__global__ void __launch_bounds__(256, kFp8 ? 4 : 3)
    adam_states_kernel(AdamStates of, const float* record, const float* scale, bool vectors) {
  if (scale[2] != 0.0f) return;
  const AdamStates s = known<kFp8>(of);
  const AdamBucket& b = s.bucket;
  const AdamFactors f = factors(b, record, scale);
  const auto step = static_cast<uint32_t>(record[3]);
  for_elements(b, vectors, [&](auto width, int64_t at, const BucketPiece& piece) {
    constexpr int kWidth = decltype(width)::value;
    StoredStates<kForm, true, kWidth> stored;
    stored.load(s, at);
    float p[kWidth], m[kWidth], v[kWidth];
    stored.update(s, f, piece, p, m, v);
    const auto scale_in = [&](StateRow row, StateElement e) {
      return s.inverse == nullptr ? 1.0f : scale_of(e, s.amax[row * s.ranges + piece.range]);
    };
    // 32 bits an element: low half rounds the weight, high half both moments. Vectors begin at even elements.
    uint32_t random[kWidth] = {};
    if constexpr (kDraws) {
#pragma unroll
      for (int i = 0; i < kWidth; i += 2) {
        const auto index = static_cast<uint64_t>(b.first_index + at + i);
        const uint64_t bits = counter_bits(b.seed, step, index / 2);
        random[i] = static_cast<uint32_t>(bits >> (32 * (index & 1)));
        if constexpr (kWidth > 1) random[i + 1] = static_cast<uint32_t>(bits >> 32);
      }
    }
    pack(s.exp_avg, m, scale_in(kFirst, s.exp_avg), false, random).store(size_of(s.exp_avg), b.exp_avg, at);
    pack(s.exp_avg_sq, v, scale_in(kSecond, s.exp_avg_sq), true, random).store(size_of(s.exp_avg_sq), b.exp_avg_sq, at);
    store_master<kForm>(s, at, piece, p, random);
  });
}

// Behind the update, which still reads the old ones: inverse scales of the shard's tensors.
__global__ void adam_inverse_kernel(AdamStates s, const float* scale) {
  if (scale[2] != 0.0f) return;
  for (int i = static_cast<int>(threadIdx.x); i < s.bucket.piece_count; i += static_cast<int>(blockDim.x)) {
    const int range = s.bucket.pieces[i].range;
    if (range < 0) continue;
    const auto set = [&](StateRow row, StateElement e) {
      if (has_scale(e)) s.inverse[row * s.ranges + range] = 1.0f / scale_of(e, s.amax[row * s.ranges + range]);
    };
    set(kFirst, s.exp_avg);
    set(kSecond, s.exp_avg_sq);
    if (s.bucket.form == MasterForm::kScaled) set(kMasterRow, StateElement::kF16);
  }
}

}  // namespace mbb::trainer::cuda
