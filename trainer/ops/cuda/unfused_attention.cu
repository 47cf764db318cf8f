// Kernels of unfused_attention.h with their launches.
#include "trainer/ops/cuda/unfused_attention.h"

#include <algorithm>
#include <initializer_list>

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;
constexpr float kMasked = -1e30f;  // far below every score, and finite

unsigned grid_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + kBlock - 1) / kBlock, 1, int64_t{1} << 20));
}

// Where heads lie in packed qkv, by value.
struct Places {
  int64_t s, b, width;
  int heads, kv_heads, d, dv, window;
  bool causal;
  float scale;
  double dropout;
  uint64_t stream;
  int64_t first_head;
  const int32_t *own, *samples;
  const float* record;

  __device__ int64_t group(int64_t head) const { return head / (heads / kv_heads); }
  __device__ int64_t row(int64_t position, int64_t n) const { return (position * b + n) * width; }
  __device__ int64_t q(int64_t i, int64_t n, int64_t head) const { return row(i, n) + head * d; }
  __device__ int64_t k(int64_t j, int64_t n, int64_t g) const { return row(j, n) + (heads + g) * int64_t{d}; }
  __device__ int64_t v(int64_t j, int64_t n, int64_t g) const {
    return row(j, n) + (heads + kv_heads) * int64_t{d} + g * dv;
  }
  __device__ int64_t out(int64_t i, int64_t n, int64_t head) const { return ((i * b + n) * heads + head) * dv; }
  __device__ int64_t at(int64_t n, int64_t head, int64_t i, int64_t j) const {
    return ((n * heads + head) * s + i) * s + j;
  }
  __device__ bool sees(int64_t i, int64_t j) const {
    if (!causal) return true;
    return j <= i && (window == 0 || j > i - window) && (own == nullptr || j >= own[i]);
  }
  __device__ int first_key(int64_t i) const {
    if (!causal) return 0;
    const int64_t in_window = window == 0 ? 0 : max(i - window + 1, int64_t{0});
    return static_cast<int>(own == nullptr ? in_window : max(in_window, int64_t{own[i]}));
  }
  __device__ int past_key(int64_t i) const { return static_cast<int>(causal ? i + 1 : s); }
  __device__ float kept(int64_t n, int64_t head, int64_t i, int64_t j) const {
    if (dropout == 0.0) return 1.0f;
    const RandomStream random(rng_mix(stream ^ (static_cast<uint64_t>(record[StepRecord::kStep]) + kRngGamma)));
    const float draw =
        random.uniform(static_cast<uint64_t>(samples[n]), static_cast<uint64_t>(((first_head + head) * s + i) * s + j));
    return static_cast<double>(draw) < dropout ? 0.0f : static_cast<float>(1.0 / (1.0 - dropout));
  }
};

// Query, key, head and sample of an element of the matrix.
struct Pair {
  int64_t n, head, i, j;
  __device__ Pair(const Places& p, int64_t at)
      : n(at / p.s / p.s / p.heads), head(at / p.s / p.s % p.heads), i(at / p.s % p.s), j(at % p.s) {}
};

Places places(const UnfusedAttention& u) {
  const AttentionAttrs& a = *u.attrs;
  const int64_t width = int64_t{a.heads + a.kv_heads} * a.head_dim + int64_t{a.kv_heads} * a.value_dim();
  return {u.seq,         u.batch,  width,     a.heads, a.kv_heads, a.head_dim,
          a.value_dim(), a.window, a.causal,  a.scale, a.dropout,  static_cast<uint64_t>(a.dropout_stream),
          u.first_head,  u.own,    u.samples, u.record};
}

int64_t elements(const UnfusedAttention& u) {
  return u.batch * u.attrs->heads * u.seq * u.seq;
}

unsigned rows_of(const UnfusedAttention& u) {
  return static_cast<unsigned>(elements(u) / u.seq);
}

template <typename A, typename B>
__device__ float dot(const A* a, const B* b, int count) {
  float sum = 0.0f;
  for (int e = 0; e < count; ++e) sum += to_float(a[e]) * to_float(b[e]);
  return sum;
}

template <typename T>
__global__ void scores_kernel(Places p, int64_t count, const T* qkv, float* scores) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const Pair x(p, at);
    scores[at] = dot(qkv + p.q(x.i, x.n, x.head), qkv + p.k(x.j, x.n, p.group(x.head)), p.d);
  }
}

// Gradient of one element of packed qkv: queries and keys from dscores, or (kValues) values from weights and dout.
template <bool kValues, typename T>
__global__ void qkv_grad_kernel(Places p, const float* matrix, const T* other, T* dqkv) {
  const int64_t count = p.s * p.b * p.width, stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t keys_from = int64_t{p.heads} * p.d, values_from = keys_from + int64_t{p.kv_heads} * p.d;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t position = at / p.width / p.b, n = at / p.width % p.b, e = at % p.width;
    const int ratio = p.heads / p.kv_heads;
    float sum = 0.0f;
    if (kValues && e >= values_from) {
      const int64_t g = (e - values_from) / p.dv, c = (e - values_from) % p.dv;
      for (int64_t head = g * ratio; head < (g + 1) * ratio; ++head)
        for (int64_t i = 0; i < p.s; ++i)
          sum += matrix[p.at(n, head, i, position)] * p.kept(n, head, i, position) *
                 to_float(other[p.out(i, n, head) + c]);
    } else if (!kValues && e < keys_from) {
      const int64_t head = e / p.d, c = e % p.d;
      for (int64_t j = 0; j < p.s; ++j)
        sum += matrix[p.at(n, head, position, j)] * to_float(other[p.k(j, n, p.group(head)) + c]);
    } else if (!kValues && e < values_from) {
      const int64_t g = (e - keys_from) / p.d, c = (e - keys_from) % p.d;
      for (int64_t head = g * ratio; head < (g + 1) * ratio; ++head)
        for (int64_t i = 0; i < p.s; ++i)
          sum += matrix[p.at(n, head, i, position)] * to_float(other[p.q(i, n, head) + c]);
    }
    dqkv[at] = from_float<T>(sum);
  }
}

__global__ void any_scale_mask_kernel(Places p, int64_t count, const float* x, float masked, float* y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride)
    y[at] = p.sees(at / p.s % p.s, at % p.s) ? p.scale * x[at] : masked;
}

// A block a row of the matrix.
__global__ void any_softmax_kernel(Places p, const float* x, bool masks, float* y) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * p.s, i = blockIdx.x % p.s;
  const auto value = [&](int64_t j) {
    if (!masks) return x[row + j];
    return p.sees(i, j) ? p.scale * x[row + j] : kMasked;
  };
  float top = -INFINITY, sum = 0.0f;
  for (int64_t j = threadIdx.x; j < p.s; j += blockDim.x) top = fmaxf(top, value(j));
  top = block_max(top, scratch);
  for (int64_t j = threadIdx.x; j < p.s; j += blockDim.x) sum += expf(value(j) - top);
  sum = block_sum(sum, scratch);
  for (int64_t j = threadIdx.x; j < p.s; j += blockDim.x) y[row + j] = expf(value(j) - top) / sum;
}

__global__ void any_softmax_grad_kernel(int64_t s, const float* dp, const float* p, float scale, float* dx) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * s;
  float sum = 0.0f;
  for (int64_t j = threadIdx.x; j < s; j += blockDim.x) sum += dp[row + j] * p[row + j];
  sum = block_sum(sum, scratch);
  for (int64_t j = threadIdx.x; j < s; j += blockDim.x) dx[row + j] = scale * p[row + j] * (dp[row + j] - sum);
}

// A row of the matrix in a block's registers, two vectors of four a thread.
struct MatrixRow {
  static constexpr int kVectors = 2;
  int64_t begin;
  int columns;

  __device__ explicit MatrixRow(int64_t s) : begin(int64_t{blockIdx.x} * s), columns(static_cast<int>(s)) {}
  __device__ static int column(int v) { return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 4; }
  // What a thread does not hold, or its query does not see, stays as it was.
  __device__ __forceinline__ void load(const float* from, int first, int past, float4 (&to)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < past && column(v) + 4 > first) to[v] = *reinterpret_cast<const float4*>(from + begin + column(v));
  }
  __device__ __forceinline__ void store(float* to, const float (&from)[kVectors][4]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < columns)
        __stcs(reinterpret_cast<float4*>(to + begin + column(v)),
               make_float4(from[v][0], from[v][1], from[v][2], from[v][3]));
  }
};

__device__ __forceinline__ void unpack(const float4 (&from)[MatrixRow::kVectors], float (&to)[MatrixRow::kVectors][4]) {
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
    to[v][0] = from[v].x, to[v][1] = from[v].y, to[v][2] = from[v].z, to[v][3] = from[v].w;
}

// scale * x where the row's query sees the key, else `masked`.
__device__ __forceinline__ void load_masked(const Places& p, const MatrixRow& row, const float* x, float masked,
                                            float (&value)[MatrixRow::kVectors][4]) {
  const unsigned query = blockIdx.x % static_cast<unsigned>(p.s);
  const int first = p.first_key(query), past = p.past_key(query);
  float4 raw[MatrixRow::kVectors] = {};
  row.load(x, first, past, raw);
  unpack(raw, value);
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = MatrixRow::column(v) + e;
      value[v][e] = j >= first && j < past ? p.scale * value[v][e] : masked;
    }
}

__global__ void __launch_bounds__(1024) scale_mask_kernel(Places p, const float* x, float masked, float* y) {
  const MatrixRow row(p.s);
  float value[MatrixRow::kVectors][4];
  load_masked(p, row, x, masked, value);
  row.store(y, value);
}

// Of the values of all threads, behind one barrier.
template <bool kLargest>
__device__ __forceinline__ float of_row(float x, float* scratch) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  x = kLargest ? warp_max(x) : warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < static_cast<int>(blockDim.x) / 32 ? scratch[lane] : (kLargest ? -INFINITY : 0.0f);
  return kLargest ? warp_max(x) : warp_sum(x);
}

template <bool kMasks>
__global__ void __launch_bounds__(1024) softmax_kernel(Places p, const float* x, float* y) {
  __shared__ float scratch[2][32];
  const MatrixRow row(p.s);
  float value[MatrixRow::kVectors][4], top = -INFINITY, sum = 0.0f;
  if constexpr (kMasks) {
    load_masked(p, row, x, kMasked, value);
  } else {
    float4 raw[MatrixRow::kVectors] = {};
    row.load(x, 0, row.columns, raw);
    unpack(raw, value);
  }
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (MatrixRow::column(v) >= row.columns) value[v][e] = -INFINITY;
      top = fmaxf(top, value[v][e]);
    }
  top = of_row<true>(top, scratch[0]);
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      value[v][e] = expf(value[v][e] - top);
      sum += value[v][e];
    }
  const float inverse = 1.0f / of_row<false>(sum, scratch[1]);
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) value[v][e] *= inverse;
  row.store(y, value);
}

__global__ void __launch_bounds__(1024)
    softmax_grad_kernel(int64_t s, const float* dp, const float* p, float scale, float* dx) {
  __shared__ float scratch[32];
  const MatrixRow row(s);
  float4 raw_dp[MatrixRow::kVectors] = {}, raw_p[MatrixRow::kVectors] = {};
  row.load(dp, 0, row.columns, raw_dp);
  row.load(p, 0, row.columns, raw_p);
  float gradient[MatrixRow::kVectors][4], weight[MatrixRow::kVectors][4], sum = 0.0f;
  unpack(raw_dp, gradient);
  unpack(raw_p, weight);
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) sum += gradient[v][e] * weight[v][e];
  sum = of_row<false>(sum, scratch);
#pragma unroll
  for (int v = 0; v < MatrixRow::kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 4; ++e) gradient[v][e] = scale * weight[v][e] * (gradient[v][e] - sum);
  row.store(dx, gradient);
}

// Threads of a block that holds a row; 0 where rows are too long or no whole vectors.
int row_threads(int64_t s, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  if (s % 4 != 0 || s > 1024 * 8 || all % 16 != 0) return 0;
  return static_cast<int>((s + 255) / 256 * 32);
}

template <typename T>
__global__ void context_kernel(Places p, const float* weights, const T* qkv, T* out) {
  const int64_t count = p.s * p.b * p.heads * p.dv, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t c = at % p.dv, head = at / p.dv % p.heads, n = at / p.dv / p.heads % p.b,
                  i = at / p.dv / p.heads / p.b;
    float sum = 0.0f;
    for (int64_t j = 0; j < p.s; ++j)
      sum += weights[p.at(n, head, i, j)] * p.kept(n, head, i, j) * to_float(qkv[p.v(j, n, p.group(head)) + c]);
    out[at] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void weights_grad_kernel(Places p, int64_t count, const T* dout, const T* qkv, float* dweights) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const Pair x(p, at);
    dweights[at] =
        p.kept(x.n, x.head, x.i, x.j) * dot(dout + p.out(x.i, x.n, x.head), qkv + p.v(x.j, x.n, p.group(x.head)), p.dv);
  }
}

}  // namespace

Status attention_scores(const UnfusedAttention& u, float* scores, const Launch& launch) {
  return by_element("attention_scores", u.element, [&]<typename T>(T) {
    scores_kernel<T><<<grid_for(elements(u)), kBlock, 0, launch.stream>>>(places(u), elements(u),
                                                                          static_cast<const T*>(u.qkv), scores);
  });
}

Status attention_scores_grad(const UnfusedAttention& u, const float* dscores, void* dqkv, const Launch& launch) {
  const Places p = places(u);
  return by_element("attention_scores_grad", u.element, [&]<typename T>(T) {
    qkv_grad_kernel<false, T><<<grid_for(p.s * p.b * p.width), kBlock, 0, launch.stream>>>(
        p, dscores, static_cast<const T*>(u.qkv), static_cast<T*>(dqkv));
  });
}

Status scale_mask(const UnfusedAttention& u, const float* x, float masked, float* y, const Launch& launch) {
  if (const int threads = row_threads(u.seq, {x, y}))
    scale_mask_kernel<<<rows_of(u), threads, 0, launch.stream>>>(places(u), x, masked, y);
  else
    any_scale_mask_kernel<<<grid_for(elements(u)), kBlock, 0, launch.stream>>>(places(u), elements(u), x, masked, y);
  return launched("scale_mask");
}

Status matrix_softmax(const UnfusedAttention& u, const float* x, bool masks, float* y, const Launch& launch) {
  const int threads = row_threads(u.seq, {x, y});
  if (threads > 0 && masks)
    softmax_kernel<true><<<rows_of(u), threads, 0, launch.stream>>>(places(u), x, y);
  else if (threads > 0)
    softmax_kernel<false><<<rows_of(u), threads, 0, launch.stream>>>(places(u), x, y);
  else
    any_softmax_kernel<<<rows_of(u), kBlock, 0, launch.stream>>>(places(u), x, masks, y);
  return launched("matrix_softmax");
}

Status matrix_softmax_grad(const UnfusedAttention& u, const float* dp, const float* p, float scale, float* dx,
                           const Launch& launch) {
  if (const int threads = row_threads(u.seq, {dp, p, dx}))
    softmax_grad_kernel<<<rows_of(u), threads, 0, launch.stream>>>(u.seq, dp, p, scale, dx);
  else
    any_softmax_grad_kernel<<<rows_of(u), kBlock, 0, launch.stream>>>(u.seq, dp, p, scale, dx);
  return launched("matrix_softmax_grad");
}

Status attention_context(const UnfusedAttention& u, const float* weights, void* out, const Launch& launch) {
  const Places p = places(u);
  return by_element("attention_context", u.element, [&]<typename T>(T) {
    context_kernel<T><<<grid_for(p.s * p.b * p.heads * p.dv), kBlock, 0, launch.stream>>>(
        p, weights, static_cast<const T*>(u.qkv), static_cast<T*>(out));
  });
}

Status attention_context_grad(const UnfusedAttention& u, const void* dout, const float* weights, float* dweights,
                              void* dqkv, const Launch& launch) {
  const Places p = places(u);
  return by_element("attention_context_grad", u.element, [&]<typename T>(T) {
    const auto* d = static_cast<const T*>(dout);
    weights_grad_kernel<T><<<grid_for(elements(u)), kBlock, 0, launch.stream>>>(p, elements(u), d,
                                                                                static_cast<const T*>(u.qkv), dweights);
    qkv_grad_kernel<true, T>
        <<<grid_for(p.s * p.b * p.width), kBlock, 0, launch.stream>>>(p, weights, d, static_cast<T*>(dqkv));
  });
}

}  // namespace mbb::trainer::cuda
