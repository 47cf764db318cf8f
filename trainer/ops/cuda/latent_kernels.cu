// Kernels of latent_kernels.h with their launches.
#include "trainer/ops/cuda/latent_kernels.h"

#include <numeric>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/by_width.cuh"
#include "trainer/ops/cuda/rotary.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kInFlight = 4;  // pieces of kWidth elements that a thread has on their way

// Elements that a block moves.
constexpr int of_block(int width) {
  return kBlock * kInFlight * width;
}

__device__ __forceinline__ const float* angles_of(const LatentPacking& p, uint32_t token) {
  const uint32_t own = p.own != nullptr ? static_cast<uint32_t>(p.own[token]) : 0;
  return p.table + int64_t{token / static_cast<uint32_t>(p.batch) - own} * p.turned;
}

// Which pair an element of a rotary part belongs to, and whether as its first.
struct PairPlace {
  bool first;
  int pair;

  __device__ __forceinline__ PairPlace(const LatentPacking& p, int column) {
    const int half = p.turned / 2;
    first = p.interleaved ? column % 2 == 0 : column < half;
    pair = p.interleaved ? column / 2 : first ? column : column - half;
  }
};

// x: elements from `column` on of the rotary part that lies at `part`, whose other elements they turn with.
template <int kWidth, typename T>
__device__ __forceinline__ void turn(const LatentPacking& p, const float* angles, float direction, const T* part,
                                     int column, float (&x)[kWidth]) {
  if constexpr (kWidth == 8)
    if (p.interleaved) {
      float angle[8];
      load8(angles + column, angle);
      turn_neighbours(angle, direction, x);
      return;
    }
  const PairPlace place(p, column);
  const int step = p.interleaved ? 1 : p.turned / 2;
  float y[kWidth];
  load<kWidth>(part + (place.first ? column + step : column - step), y);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float* const angle = angles + (place.pair + i) * 2;
    const float sine = direction * angle[1];
    if (place.first)
      turn_pair(angle[0], sine, x[i], y[i]);
    else
      turn_pair(angle[0], sine, y[i], x[i]);
  }
}

// Neighbours in memory that move together; column: their place in a rotary part, or negative.
template <typename T>
struct Piece {
  const T* from = nullptr;
  T* to = nullptr;
  int column = -1;
};

// A thread's pieces, all on their way at once: those at `first`, first + kBlock · kWidth, ... below `end`, of which
// `place` knows more.
template <int kWidth, typename T, typename Place>
__device__ __forceinline__ void move_pieces(const LatentPacking& p, uint32_t token, float direction, int first, int end,
                                            const Place& place) {
  Piece<T> piece[kInFlight];
  RawValues<kWidth, T> raw[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int at = first + u * kBlock * kWidth;
    if (at >= end) continue;
    piece[u] = place(at);
    raw[u].load(piece[u].from);
  }
  const float* const angles = p.turned > 0 ? angles_of(p, token) : nullptr;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if (first + u * kBlock * kWidth >= end) continue;
    const int column = piece[u].column;
    if (column < 0 || column >= p.turned) {
      raw[u].store(piece[u].to);
      continue;
    }
    float x[kWidth];
    raw[u].unpack(x);
    turn<kWidth>(p, angles, direction, piece[u].from - column, column, x);
    store<kWidth>(piece[u].to, x);
  }
}

// Both kernels: `parts` blocks a token.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kBlock)
    latent_pack_kernel(LatentPacking p, int parts, const T* q, const T* key, const T* kv, T* packed) {
  const int head_key = p.nope + p.rope, pair = p.nope + p.value, queries = p.heads * head_key;
  const int width = 2 * queries + p.heads * p.value;
  const uint32_t token = blockIdx.x / parts, part = blockIdx.x - token * parts;
  T* const to = packed + int64_t{token} * width;
  q += int64_t{token} * queries, key += int64_t{token} * p.rope, kv += int64_t{token} * p.heads * pair;
  const int first = static_cast<int>(part) * of_block(kWidth) + static_cast<int>(threadIdx.x) * kWidth;
  move_pieces<kWidth, T>(p, token, 1.0f, first, width, [&](int at) -> Piece<T> {
    if (at >= 2 * queries) {
      const int value = at - 2 * queries, head = value / p.value;
      return {kv + head * pair + p.nope + (value - head * p.value), to + at};
    }
    const int head = at / head_key, column = at - head * head_key - p.nope;
    if (head < p.heads) return {q + at, to + at, column};
    if (column >= 0) return {key + column, to + at, column};
    return {kv + (head - p.heads) * pair + p.nope + column, to + at};
  });
}

// Queries, and keys with values, back from the packed rows.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kBlock)
    latent_unpack_kernel(LatentPacking p, int parts, const T* dpacked, T* dq, T* dkv) {
  const int head_key = p.nope + p.rope, pair = p.nope + p.value, queries = p.heads * head_key, pairs = p.heads * pair;
  const uint32_t token = blockIdx.x / parts, part = blockIdx.x - token * parts;
  const T* const from = dpacked + int64_t{token} * (2 * queries + p.heads * p.value);
  dq += int64_t{token} * queries, dkv += int64_t{token} * pairs;
  const int first = static_cast<int>(part) * of_block(kWidth) + static_cast<int>(threadIdx.x) * kWidth;
  move_pieces<kWidth, T>(p, token, -1.0f, first, queries + pairs, [&](int at) -> Piece<T> {
    if (at < queries) return {from + at, dq + at, at % head_key - p.nope};
    const int e = at - queries, head = e / pair, inner = e - head * pair;
    const int key = queries + head * head_key, value = 2 * queries + head * p.value - p.nope;
    return {from + (inner < p.nope ? key : value) + inner, dkv + e};
  });
}

// Where in a rotary part the vector of kWidth elements at `index` lies, in an order in which what turns together stands
// side by side: vectors of both halves in turn, or as they lie.
template <int kWidth>
__device__ __forceinline__ int column_of(const LatentPacking& p, int index) {
  if (p.interleaved || index >= p.turned) return index;
  const int vector = index / kWidth;
  return vector / 2 * kWidth + vector % 2 * (p.turned / 2);
}

// The rotary key, which all heads share: a block a token. Every strand of threads sums its heads in order, then strands
// are added in theirs, and the sum turns back: the angle is the same for every head.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kBlock) latent_key_grad_kernel(LatentPacking p, const T* dpacked, T* dkey) {
  __shared__ __align__(16) float sums[kBlock * kWidth];
  const int head_key = p.nope + p.rope, queries = p.heads * head_key, thread = static_cast<int>(threadIdx.x);
  const int lanes = min(max(p.rope / kWidth, 1), kBlock), strands = kBlock / lanes, across = lanes * kWidth;
  const int64_t token = blockIdx.x;
  const T* const from = dpacked + token * (2 * queries + p.heads * p.value) + queries + p.nope;
  const float* const angles = p.turned > 0 ? angles_of(p, blockIdx.x) : nullptr;
  for (int base = 0; base < p.rope; base += across) {
    const int index = base + thread % lanes * kWidth, column = column_of<kWidth>(p, index);
    float sum[kWidth] = {};
#pragma unroll 4
    for (int head = thread / lanes; head < p.heads && index < p.rope; head += strands) {
      if (thread >= strands * lanes) break;
      float value[kWidth];
      load<kWidth>(from + head * head_key + column, value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += value[i];
    }
    __syncthreads();
    store<kWidth>(sums + thread * kWidth, sum);
    __syncthreads();
    const auto total = [&](int e) {
      float all = 0.0f;
      for (int s = 0; s < strands; ++s) all += sums[s * across + e];
      return all;
    };
    for (int e = thread; e < min(across, p.rope - base); e += kBlock) {
      const int inner = e % kWidth, at = column_of<kWidth>(p, base + e - inner) + inner;
      float all = total(e);
      if (at < p.turned) {
        const PairPlace place(p, at);
        float other = total(e ^ (p.interleaved ? 1 : kWidth));
        const float cosine = angles[place.pair * 2], sine = -angles[place.pair * 2 + 1];
        place.first ? turn_pair(cosine, sine, all, other) : turn_pair(cosine, sine, other, all);
      }
      dkey[token * p.rope + at] = from_float<T>(all);
    }
  }
}

// A number that 8 divides when 8 divides all parts of a row, and of a rotary part what turns together.
int widths(const LatentPacking& p) {
  const int parts = std::gcd(p.nope, std::gcd(p.rope, p.value));
  return std::gcd(parts, p.interleaved ? p.turned : p.turned / 2);
}

}  // namespace

Status latent_pack(const LatentPacking& p, const void* q, const void* key, const void* kv, void* packed,
                   const Launch& launch) {
  return by_element("latent_pack", p.element, [&]<typename T>(T) {
    by_width(widths(p), {q, key, kv, packed}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int row = p.heads * (2 * (p.nope + p.rope) + p.value), parts = (row - 1) / of_block(kWidth) + 1;
      latent_pack_kernel<kWidth, T><<<static_cast<unsigned>(p.tokens * parts), kBlock, 0, launch.stream>>>(
          p, parts, static_cast<const T*>(q), static_cast<const T*>(key), static_cast<const T*>(kv),
          static_cast<T*>(packed));
    });
  });
}

Status latent_unpack_grad(const LatentPacking& p, const void* dpacked, void* dq, void* dkey, void* dkv,
                          const Launch& launch) {
  return by_element("latent_unpack_grad", p.element, [&]<typename T>(T) {
    by_width(widths(p), {dpacked, dq, dkv}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int row = p.heads * (2 * p.nope + p.rope + p.value), parts = (row - 1) / of_block(kWidth) + 1;
      latent_unpack_kernel<kWidth, T><<<static_cast<unsigned>(p.tokens * parts), kBlock, 0, launch.stream>>>(
          p, parts, static_cast<const T*>(dpacked), static_cast<T*>(dq), static_cast<T*>(dkv));
      latent_key_grad_kernel<kWidth, T><<<static_cast<unsigned>(p.tokens), kBlock, 0, launch.stream>>>(
          p, static_cast<const T*>(dpacked), static_cast<T*>(dkey));
    });
  });
}

}  // namespace mbb::trainer::cuda
