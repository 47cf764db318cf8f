// Element-wise kernels: 8 elements a thread with 16-byte accesses, grid-stride; the last count % 8 elements go one by
// one.
#pragma once

#include <algorithm>
#include <type_traits>

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/rotary.cuh"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

template <typename T>
__global__ void add_kernel(const T* a, const T* b, T* y, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * 8;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8; at < count; at += stride) {
    if (at + 8 <= count) {
      float left[8], right[8];
      load8(a + at, left);
      load8(b + at, right);
#pragma unroll
      for (int i = 0; i < 8; ++i) left[i] += right[i];
      store8(y + at, left);
    } else {
      for (int64_t i = at; i < count; ++i) y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
    }
  }
}

// kCount elements in one access of 8 or 16 bytes.
template <int kCount, typename T>
struct Piece {
  std::conditional_t<kCount * sizeof(T) == 16, uint4, uint2> raw;
  __device__ __forceinline__ T* values() { return reinterpret_cast<T*>(&raw); }
};

// y = x * factor (*scale when given), converted. A thread's accesses are 16 bytes on the wider side, so that a warp's
// fill whole sectors on either.
inline constexpr int kCopyInFlight = 4;
template <typename From, typename To>
inline constexpr int kCopyPiece = 16 / static_cast<int>(std::max(sizeof(From), sizeof(To)));
template <typename From, typename To>
__global__ void scaled_copy_kernel(const From* x, const float* scale, To* y, int64_t count) {
  constexpr int kPiece = kCopyPiece<From, To>;
  const float factor = scale != nullptr ? *scale : 1.0f;
  const int64_t step = int64_t{blockDim.x} * kPiece, stride = gridDim.x * step * kCopyInFlight, whole = count - kPiece;
  for (int64_t first = blockIdx.x * step * kCopyInFlight + int64_t{threadIdx.x} * kPiece; first < count;
       first += stride) {
    Piece<kPiece, From> from[kCopyInFlight];
#pragma unroll
    for (int u = 0; u < kCopyInFlight; ++u)
      if (first + u * step <= whole) from[u] = *reinterpret_cast<const Piece<kPiece, From>*>(x + first + u * step);
#pragma unroll
    for (int u = 0; u < kCopyInFlight; ++u) {
      if (first + u * step > whole) break;
      Piece<kPiece, To> to;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) to.values()[i] = from_float<To>(to_float(from[u].values()[i]) * factor);
      *reinterpret_cast<Piece<kPiece, To>*>(y + first + u * step) = to;
    }
  }
  const int64_t rest = count - 1 - threadIdx.x;
  if (blockIdx.x == 0 && rest >= count / kPiece * kPiece) y[rest] = from_float<To>(to_float(x[rest]) * factor);
}

template <typename T>
__global__ void fill_kernel(T* y, float value, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * 8;
  const float values[8] = {value, value, value, value, value, value, value, value};
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8; at < count; at += stride) {
    if (at + 8 <= count)
      store8(y + at, values);
    else
      for (int64_t i = at; i < count; ++i) y[i] = from_float<T>(value);
  }
}

template <typename T>
__global__ void swiglu_forward_kernel(const T* gate_up, T* y, int64_t rows, int64_t cols) {
  const int64_t vectors = cols / 8, count = rows * vectors, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t row = at / vectors, column = (at - row * vectors) * 8;
    float gate[8], up[8];
    load8(gate_up + row * 2 * cols + column, gate);
    load8(gate_up + row * 2 * cols + cols + column, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] = silu(gate[i]) * up[i];
    store8(y + row * cols + column, gate);
  }
}

template <typename T>
__global__ void swiglu_backward_kernel(const T* gate_up, const T* dy, T* dgate_up, int64_t rows, int64_t cols) {
  const int64_t vectors = cols / 8, count = rows * vectors, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t row = at / vectors, column = (at - row * vectors) * 8;
    float gate[8], up[8], d[8];
    load8(gate_up + row * 2 * cols + column, gate);
    load8(gate_up + row * 2 * cols + cols + column, up);
    load8(dy + row * cols + column, d);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float dgate, dup;
      swiglu_gradient(gate[i], up[i], d[i], dgate, dup);
      gate[i] = dgate;
      up[i] = dup;
    }
    store8(dgate_up + row * 2 * cols + column, gate);
    store8(dgate_up + row * 2 * cols + cols + column, up);
  }
}

template <typename T>
struct RopeParams {
  static constexpr int kInFlight = sizeof(T) == 2 ? 4 : 2;
  const T* from = nullptr;
  T* to = nullptr;
  const float* table = nullptr;
  const int32_t* own = nullptr;
  uint32_t tokens = 0, batch = 1;
  int width = 0, head_dim = 0, offset = 0, half = 0, first_head = 0, heads = 0;
  int turns = 0, parts = 0;  // of a token's warps: those that turn heads, with those that copy the rest
  float direction = 1.0f;
};

// Of lines that are stored again at once: L2's order stays as it is, which is 4 % faster.
template <typename T>
__device__ __forceinline__ void load_in_place(const T* from, Raw8<T>& to) {
  uint64_t unchanged;
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(unchanged));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i)
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to.part[i].x), "=r"(to.part[i].y), "=r"(to.part[i].z), "=r"(to.part[i].w)
                 : "l"(reinterpret_cast<const uint4*>(from) + i), "l"(unchanged)
                 : "memory");
}

// The heads that do not turn, 32 vectors times kInFlight a warp.
template <typename T>
__device__ __forceinline__ void copy_rest(const RopeParams<T>& p, uint32_t begin, int part) {
  const int before = p.first_head * p.head_dim / 8, turned = p.heads * p.head_dim / 8, rest = p.width / 8 - turned;
  const int first = part * 32 * p.kInFlight + static_cast<int>(threadIdx.x & 31);
  Raw8<T> raw[p.kInFlight];
  const auto place = [&](int u) {
    const int at = first + u * 32;
    return begin + (at < before ? at : at + turned) * 8;
  };
#pragma unroll
  for (int u = 0; u < p.kInFlight; ++u)
    if (first + u * 32 < rest) raw[u].load(p.from + place(u));
#pragma unroll
  for (int u = 0; u < p.kInFlight; ++u)
    if (first + u * 32 < rest) raw[u].store(p.to + place(u));
}

// The same eight elements of `heads` heads at strides of `stride`: pairs are neighbours.
template <int kHeads, typename T>
__device__ __forceinline__ void turn_heads(const RopeParams<T>& p, uint32_t first, const float* angles, int heads,
                                           int stride) {
  Raw8<T> raw[kHeads];
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    if (u >= heads) continue;
    if constexpr (kHeads == 1)
      load_in_place(p.from + first + u * stride, raw[u]);
    else
      raw[u].load(p.from + first + u * stride);
  }
  float turn[8];
  load8(angles, turn);
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    if (u >= heads) continue;
    float x[8];
    raw[u].unpack(x);
    turn_neighbours(turn, p.direction, x);
    store8(p.to + first + u * stride, x);
  }
}

// A warp a part of a token's heads, all on their way at once: a lane has 8 pairs of kInFlight heads, elements of a
// head's first half and as many of its second, and their angles, or 4 interleaved pairs of each. Lanes beside each
// other share a head, then come the next heads. tokens * width below 2^32. kInFlight 1: of parts of heads, in place.
template <int kInFlight, bool kInterleaved>
constexpr int kRopeThreads = kInFlight == 1 && kInterleaved ? 128 : 256;
template <typename T, int kInFlight, bool kInterleaved>
__global__ void __launch_bounds__(kRopeThreads<kInFlight, kInterleaved>, kInFlight > 1 || sizeof(T) == 4 ? 3
                                                                         : kInterleaved                  ? 16
                                                                                                         : 6)
    rope_kernel(RopeParams<T> p) {
  const uint32_t warp = blockIdx.x * (kRopeThreads<kInFlight, kInterleaved> / 32) + threadIdx.x / 32;
  const uint32_t token = warp / static_cast<uint32_t>(p.parts);
  const int part = static_cast<int>(warp - token * static_cast<uint32_t>(p.parts));
  if (token >= p.tokens) return;
  const uint32_t begin = token * static_cast<uint32_t>(p.width);
  if (part >= p.turns) {
    copy_rest(p, begin, part - p.turns);
    return;
  }
  const int vectors = p.half / (kInterleaved ? 4 : 8), across = min(vectors, 32), together = 32 / across;
  const int lane = static_cast<int>(threadIdx.x & 31), head = part * together * kInFlight + lane / across;
  if (lane >= together * across) return;
  const uint32_t position = p.own != nullptr ? token - static_cast<uint32_t>(p.own[token]) : token / p.batch;
  for (int vector = lane % across; vector < vectors; vector += across) {
    const uint32_t first = begin + (p.first_head + head) * p.head_dim + p.offset + vector * 8;
    if constexpr (kInterleaved) {
      const int left_heads = (p.heads - head + together - 1) / together;
      turn_heads<kInFlight>(p, first, p.table + (int64_t{position} * p.half + vector * 4) * 2, left_heads,
                            together * p.head_dim);
    } else {
      Raw8<T> left[kInFlight], right[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (head + u * together >= p.heads) continue;
        left[u].load(p.from + first + u * together * p.head_dim);
        right[u].load(p.from + first + u * together * p.head_dim + p.half);
      }
      const float* const angles = p.table + (int64_t{position} * p.half + vector * 8) * 2;
      float low[8], high[8];
      load8(angles, low);
      load8(angles + 8, high);
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (head + u * together >= p.heads) continue;
        float a[8], b[8];
        left[u].unpack(a);
        right[u].unpack(b);
        turn_pairs(low, high, p.direction, a, b);
        store8(p.to + first + u * together * p.head_dim, a);
        store8(p.to + first + u * together * p.head_dim + p.half, b);
      }
    }
  }
}

__global__ void rope_table_kernel(float* table, int64_t seq, int half, double log_base) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= seq * half) return;
  const double position = static_cast<double>(at / half);
  const double angle = position * exp(-log_base * static_cast<double>(at % half) / half);
  table[2 * at] = static_cast<float>(cos(angle));
  table[2 * at + 1] = static_cast<float>(sin(angle));
}

template <typename T>
__global__ void embedding_forward_kernel(const T* table, const int32_t* ids, T* y, int64_t tokens, int64_t cols,
                                         int64_t vocab, int64_t first) {
  const int64_t vectors = cols / 8, count = tokens * vectors, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t token = at / vectors, column = (at - token * vectors) * 8;
    const int64_t id = ids[token] - first;
    float values[8] = {};
    if (id >= 0 && id < vocab) load8(table + id * cols + column, values);
    store8(y + token * cols + column, values);
  }
}

}  // namespace mbb::trainer::cuda
