// RMS norm of query and key heads of packed qkv (block_kernels.h), with its gradient.
#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

template <typename T>
__device__ const T* head_weight(const HeadNorm& n, int64_t head) {
  return static_cast<const T*>(head < n.heads ? n.query_weight : n.key_weight);
}

// Heads of all tokens lie one behind the other, values too: a head is kLanes vectors in neighboring lanes, and as a
// block is whole heads, a thread's place in its heads, and so its weights, never changes.
template <int kLanes, typename T>
struct HeadVectors {
  static constexpr int kHeads = kBlock / kLanes;  // of a block at once
  int place = static_cast<int>(threadIdx.x) % kLanes * 8;
  uint32_t a_token, heads;  // heads of a token, of all
  Raw8<T> query, key;

  __device__ explicit HeadVectors(const HeadNorm& n)
      : a_token(static_cast<uint32_t>(n.width / n.head_dim)), heads(static_cast<uint32_t>(n.tokens) * a_token) {
    query.load(static_cast<const T*>(n.query_weight) + place);
    key.load(static_cast<const T*>(n.key_weight) + place);
  }
  __device__ __forceinline__ void weight(bool of_query, float (&to)[8]) const {
    Raw8<T> of;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i)  // by word: a choice of the two would put them in memory
      of.part[i] = make_uint4(of_query ? query.part[i].x : key.part[i].x, of_query ? query.part[i].y : key.part[i].y,
                              of_query ? query.part[i].z : key.part[i].z, of_query ? query.part[i].w : key.part[i].w);
    of.unpack(to);
  }
  // Of head `at` of all; past the last one, of that.
  __device__ __forceinline__ int64_t element(uint32_t at) const {
    return int64_t{min(at, heads - 1)} * (kLanes * 8) + place;
  }
  __device__ static float sum(float x) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
};

template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlock) head_norm_forward_kernel(HeadNorm n, T* y) {
  constexpr int kInFlight = 4;
  using Vectors = HeadVectors<kLanes, T>;
  const Vectors vectors(n);
  const uint32_t first = blockIdx.x * (Vectors::kHeads * kInFlight) + threadIdx.x / kLanes;
  const auto normed = static_cast<uint32_t>(n.heads + n.kv_heads);
  Raw8<T> raw[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u)
    raw[u].load(static_cast<const T*>(n.x) + vectors.element(first + u * Vectors::kHeads));
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const uint32_t at = first + u * Vectors::kHeads, token = at / vectors.a_token, head = at - token * vectors.a_token;
    float x[8], w[8], squares = 0.0f;
    raw[u].unpack(x);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
    const float inverse = rsqrtf(Vectors::sum(squares) * (1.0f / (kLanes * 8)) + n.eps);
    if (at >= vectors.heads) continue;
    if (head < normed) {
      if (vectors.place == 0) n.inverse[int64_t{token} * normed + head] = inverse;
      vectors.weight(head < n.heads, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = x[i] * inverse * w[i];
    }
    store8(y + vectors.element(at), x);
  }
}

// Sums of dy * x_hat of a block's queries and keys: [grid, 2, head_dim].
template <int kLanes>
__device__ void store_weight_sums(const float (&query)[8], const float (&key)[8], float* partials) {
  constexpr int kColumns = kLanes * 8, kStrands = kBlock / kLanes;
  __shared__ __align__(16) float sums[kStrands][2 * kColumns];
  const int strand = static_cast<int>(threadIdx.x) / kLanes, place = static_cast<int>(threadIdx.x) % kLanes * 8;
  store8(&sums[strand][place], query);
  store8(&sums[strand][kColumns + place], key);
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < 2 * kColumns; column += kBlock) {
    float sum = 0.0f;
    for (int s = 0; s < kStrands; ++s) sum += sums[s][column];
    partials[int64_t{blockIdx.x} * (2 * kColumns) + column] = sum;
  }
}

// Gradients of x and, by block, of the weights in one pass.
template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlock, 3)
    head_norm_backward_kernel(HeadNorm n, const T* dy, T* dx, float* partials) {
  constexpr int kInFlight = sizeof(T) == 2 ? 2 : 1;
  using Vectors = HeadVectors<kLanes, T>;
  const Vectors vectors(n);
  const auto normed = static_cast<uint32_t>(n.heads + n.kv_heads);
  const uint32_t step = gridDim.x * (Vectors::kHeads * kInFlight);
  float query[8] = {}, key[8] = {};
  for (uint32_t base = blockIdx.x * (Vectors::kHeads * kInFlight); base < vectors.heads; base += step) {
    const uint32_t first = base + threadIdx.x / kLanes;
    Raw8<T> raw_x[kInFlight], raw_dy[kInFlight];
    uint32_t head[kInFlight];
    float inverse[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const uint32_t at = min(first + u * Vectors::kHeads, vectors.heads - 1), token = at / vectors.a_token;
      raw_x[u].load(static_cast<const T*>(n.x) + vectors.element(at));
      raw_dy[u].load(dy + vectors.element(at));
      head[u] = at - token * vectors.a_token;
      inverse[u] = head[u] < normed ? n.inverse[int64_t{token} * normed + head[u]] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const bool there = first + u * Vectors::kHeads < vectors.heads, of_query = head[u] < n.heads;
      float x[8], g[8], w[8], dot = 0.0f;
      raw_x[u].unpack(x);
      raw_dy[u].unpack(g);
      vectors.weight(of_query, w);
      if (there && of_query) {
#pragma unroll
        for (int i = 0; i < 8; ++i) query[i] += g[i] * x[i] * inverse[u];
      } else if (there && head[u] < normed) {
#pragma unroll
        for (int i = 0; i < 8; ++i) key[i] += g[i] * x[i] * inverse[u];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += g[i] * w[i] * x[i] * inverse[u];
      const float mean = Vectors::sum(dot) * (1.0f / (kLanes * 8));
      if (head[u] < normed) {
#pragma unroll
        for (int i = 0; i < 8; ++i) g[i] = inverse[u] * (g[i] * w[i] - x[i] * inverse[u] * mean);
      }
      if (there) store8(dx + vectors.element(first + u * Vectors::kHeads), g);
    }
  }
  store_weight_sums<kLanes>(query, key, partials);
}

// Heads of any size: a warp a (token, head); those past the normed ones are copied.
template <typename T>
__global__ void any_head_norm_forward_kernel(HeadNorm n, T* y) {
  const int64_t normed = n.heads + n.kv_heads, values = n.width - normed * n.head_dim;
  const int lane = threadIdx.x & 31;
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (warp >= n.tokens * (normed + 1)) return;
  const int64_t token = warp / (normed + 1), head = warp % (normed + 1);
  const T* x = static_cast<const T*>(n.x) + token * n.width + head * n.head_dim;
  T* to = y + token * n.width + head * n.head_dim;
  if (head == normed) {
    for (int64_t i = lane; i < values; i += 32) to[i] = x[i];
    return;
  }
  float squares = 0.0f;
  for (int i = lane; i < n.head_dim; i += 32) squares += to_float(x[i]) * to_float(x[i]);
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(n.head_dim) + n.eps);
  if (lane == 0) n.inverse[token * normed + head] = inverse;
  const T* w = head_weight<T>(n, head);
  for (int i = lane; i < n.head_dim; i += 32) to[i] = from_float<T>(to_float(x[i]) * inverse * to_float(w[i]));
}

template <typename T>
__global__ void any_head_norm_backward_kernel(HeadNorm n, const T* dy, T* dx) {
  const int64_t normed = n.heads + n.kv_heads, values = n.width - normed * n.head_dim;
  const int lane = threadIdx.x & 31;
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (warp >= n.tokens * (normed + 1)) return;
  const int64_t token = warp / (normed + 1), head = warp % (normed + 1), at = token * n.width + head * n.head_dim;
  const T* x = static_cast<const T*>(n.x) + at;
  if (head == normed) {
    for (int64_t i = lane; i < values; i += 32) dx[at + i] = dy[at + i];
    return;
  }
  const T* w = head_weight<T>(n, head);
  const float inverse = n.inverse[token * normed + head];
  float dot = 0.0f;
  for (int i = lane; i < n.head_dim; i += 32) dot += to_float(dy[at + i]) * to_float(w[i]) * to_float(x[i]) * inverse;
  const float mean = warp_sum(dot) / static_cast<float>(n.head_dim);
  for (int i = lane; i < n.head_dim; i += 32)
    dx[at + i] = from_float<T>(inverse * (to_float(dy[at + i]) * to_float(w[i]) - to_float(x[i]) * inverse * mean));
}

// Sums of dy * x_hat by head dimension over every gridDim-th token: [grid, 2, head_dim].
template <typename T>
__global__ void any_head_norm_weight_kernel(HeadNorm n, const T* dy, float* partials) {
  const int64_t normed = n.heads + n.kv_heads;
  for (int i = threadIdx.x; i < n.head_dim; i += blockDim.x) {
    float query = 0.0f, key = 0.0f;
    for (int64_t token = blockIdx.x; token < n.tokens; token += gridDim.x)
      for (int64_t head = 0; head < normed; ++head) {
        const int64_t at = token * n.width + head * n.head_dim + i;
        const float part =
            to_float(dy[at]) * to_float(static_cast<const T*>(n.x)[at]) * n.inverse[token * normed + head];
        (head < n.heads ? query : key) += part;
      }
    partials[(int64_t{blockIdx.x} * 2) * n.head_dim + i] = query;
    partials[(int64_t{blockIdx.x} * 2 + 1) * n.head_dim + i] = key;
  }
}

// 32 columns of queries and keys a block: 32 strands each sum every 32nd partial, then a warp adds a column's.
__global__ void __launch_bounds__(1024) head_norm_weight_sum_kernel(const float* partials, int count, int head_dim,
                                                                    float* dquery, float* dkey, bool accumulate) {
  __shared__ float strands[32][33];
  const int lane = static_cast<int>(threadIdx.x) & 31, strand = static_cast<int>(threadIdx.x) >> 5;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane, own = static_cast<int>(blockIdx.x) * 32 + strand;
  float sum = 0.0f;
  if (column < 2 * head_dim) {
#pragma unroll 8
    for (int p = strand; p < count; p += 32) sum += partials[int64_t{p} * 2 * head_dim + column];
  }
  strands[strand][lane] = sum;
  __syncthreads();
  sum = warp_sum(strands[lane][strand]);
  if (lane != 0 || own >= 2 * head_dim) return;
  float* const to = own < head_dim ? dquery + own : dkey + own - head_dim;
  *to = accumulate ? *to + sum : sum;
}

constexpr int kPartials = 3 * 132;

// Calls with the number of vectors of a head, 0: heads that are not so many whole vectors.
template <typename Call>
void by_lanes(const HeadNorm& n, std::initializer_list<const void*> addresses, Call&& call) {
  const bool wide = n.width % n.head_dim == 0 && n.tokens * (n.width / n.head_dim) < int64_t{1} << 31 &&
                    std::all_of(addresses.begin(), addresses.end(),
                                [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 32 == 0; });
  if (wide && n.head_dim == 64)
    call(std::integral_constant<int, 8>{});
  else if (wide && n.head_dim == 128)
    call(std::integral_constant<int, 16>{});
  else if (wide && n.head_dim == 256)
    call(std::integral_constant<int, 32>{});
  else
    call(std::integral_constant<int, 0>{});
}

unsigned warps_grid(const HeadNorm& n) {
  const int64_t warps = n.tokens * (n.heads + n.kv_heads + 1);
  return static_cast<unsigned>((warps * 32 + kBlock - 1) / kBlock);
}

}  // namespace

Status head_norm_forward(const HeadNorm& n, void* y, const Launch& launch) {
  return by_element("head_norm_forward", n.element, [&]<typename T>(T) {
    by_lanes(n, {n.x, n.query_weight, n.key_weight, y}, [&](auto lanes) {
      constexpr int kLanes = decltype(lanes)::value;
      if constexpr (kLanes == 0) {
        any_head_norm_forward_kernel<T><<<warps_grid(n), kBlock, 0, launch.stream>>>(n, static_cast<T*>(y));
      } else {
        const int64_t heads = n.tokens * (n.width / n.head_dim), a_block = kBlock / kLanes * 4;
        head_norm_forward_kernel<kLanes, T>
            <<<blocks((heads + a_block - 1) / a_block), kBlock, 0, launch.stream>>>(n, static_cast<T*>(y));
      }
    });
  });
}

int64_t head_norm_workspace(const HeadNorm& n) {
  return int64_t{kPartials} * 2 * n.head_dim * 4;
}

Status head_norm_backward(const HeadNorm& n, const void* dy, void* dx, float* dquery, float* dkey, bool accumulate,
                          void* workspace, const Launch& launch) {
  return by_element("head_norm_backward", n.element, [&]<typename T>(T) {
    auto* const partials = static_cast<float*>(workspace);
    const auto* const d = static_cast<const T*>(dy);
    by_lanes(n, {n.x, dy, n.query_weight, n.key_weight, dx}, [&](auto lanes) {
      constexpr int kLanes = decltype(lanes)::value;
      if constexpr (kLanes == 0) {
        any_head_norm_weight_kernel<T><<<kPartials, 128, 0, launch.stream>>>(n, d, partials);
        any_head_norm_backward_kernel<T><<<warps_grid(n), kBlock, 0, launch.stream>>>(n, d, static_cast<T*>(dx));
      } else {
        head_norm_backward_kernel<kLanes, T>
            <<<kPartials, kBlock, 0, launch.stream>>>(n, d, static_cast<T*>(dx), partials);
      }
    });
    head_norm_weight_sum_kernel<<<blocks((2 * n.head_dim + 31) / 32), 1024, 0, launch.stream>>>(
        partials, kPartials, n.head_dim, dquery, dkey, accumulate);
  });
}

}  // namespace mbb::trainer::cuda
