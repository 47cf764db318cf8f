// Kernels of unfused_attention.h with their launches.
#include "trainer/ops/cuda/unfused_attention.h"

#include <algorithm>

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

__global__ void scale_mask_kernel(Places p, int64_t count, const float* x, float masked, float* y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride)
    y[at] = p.sees(at / p.s % p.s, at % p.s) ? p.scale * x[at] : masked;
}

// A block a row of the matrix.
__global__ void softmax_kernel(Places p, const float* x, bool masks, float* y) {
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

__global__ void softmax_grad_kernel(int64_t s, const float* dp, const float* p, float scale, float* dx) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * s;
  float sum = 0.0f;
  for (int64_t j = threadIdx.x; j < s; j += blockDim.x) sum += dp[row + j] * p[row + j];
  sum = block_sum(sum, scratch);
  for (int64_t j = threadIdx.x; j < s; j += blockDim.x) dx[row + j] = scale * p[row + j] * (dp[row + j] - sum);
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
  scale_mask_kernel<<<grid_for(elements(u)), kBlock, 0, launch.stream>>>(places(u), elements(u), x, masked, y);
  return launched("scale_mask");
}

Status matrix_softmax(const UnfusedAttention& u, const float* x, bool masks, float* y, const Launch& launch) {
  softmax_kernel<<<static_cast<unsigned>(elements(u) / u.seq), kBlock, 0, launch.stream>>>(places(u), x, masks, y);
  return launched("matrix_softmax");
}

Status matrix_softmax_grad(const UnfusedAttention& u, const float* dp, const float* p, float scale, float* dx,
                           const Launch& launch) {
  softmax_grad_kernel<<<static_cast<unsigned>(elements(u) / u.seq), kBlock, 0, launch.stream>>>(u.seq, dp, p, scale,
                                                                                                dx);
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
