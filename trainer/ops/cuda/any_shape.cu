// Scalar kernels for any shape, with their launches.
#include "trainer/ops/cuda/any_shape.h"

#include <algorithm>

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;

template <typename T>
__global__ void any_norm_forward_kernel(const T* x, const T* weight, T* y, float* rstd, int64_t cols, float eps) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * cols;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) sum += to_float(x[row + c]) * to_float(x[row + c]);
  const float r = rsqrtf(block_sum(sum, scratch) / static_cast<float>(cols) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[row + c] = from_float<T>(to_float(x[row + c]) * r * to_float(weight[c]));
}

template <typename T>
__global__ void any_norm_backward_kernel(const T* x, const T* dy, const T* dresidual, const T* weight,
                                         const float* rstd, T* dx, int64_t cols) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * cols;
  const float r = rstd[blockIdx.x];
  float dot = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    dot += to_float(dy[row + c]) * to_float(weight[c]) * to_float(x[row + c]) * r;
  dot = block_sum(dot, scratch) / static_cast<float>(cols);
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float g = to_float(dy[row + c]) * to_float(weight[c]);
    const float add = dresidual != nullptr ? to_float(dresidual[row + c]) : 0.0f;
    dx[row + c] = from_float<T>(add + r * (g - to_float(x[row + c]) * r * dot));
  }
}

template <typename T>
__global__ void any_norm_weight_kernel(const T* x, const T* dy, const float* rstd, int64_t rows, int64_t cols,
                                       float* dweight, bool accumulate) {
  __shared__ float scratch[32];
  const int64_t c = blockIdx.x;
  float sum = 0.0f;
  for (int64_t r = threadIdx.x; r < rows; r += blockDim.x)
    sum += to_float(dy[r * cols + c]) * to_float(x[r * cols + c]) * rstd[r];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dweight[c] = accumulate ? dweight[c] + sum : sum;
}

template <typename T>
__global__ void any_swiglu_forward_kernel(const T* gate_up, T* y, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[row * cols + c] =
        from_float<T>(silu(to_float(gate_up[row * 2 * cols + c])) * to_float(gate_up[(row * 2 + 1) * cols + c]));
}

template <typename T>
__global__ void any_swiglu_backward_kernel(const T* gate_up, const T* dy, T* dgate_up, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    float dgate, dup;
    swiglu_gradient(to_float(gate_up[row * 2 * cols + c]), to_float(gate_up[(row * 2 + 1) * cols + c]),
                    to_float(dy[row * cols + c]), dgate, dup);
    dgate_up[row * 2 * cols + c] = from_float<T>(dgate);
    dgate_up[(row * 2 + 1) * cols + c] = from_float<T>(dup);
  }
}

template <typename T>
__global__ void any_rope_kernel(T* qkv, const float* table, int64_t batch, int rotated, int total, int head_dim,
                                float direction) {
  const int64_t token = blockIdx.x;
  const int half = head_dim / 2;
  for (int at = threadIdx.x; at < rotated * half; at += blockDim.x) {
    T* first = qkv + (token * total + at / half) * head_dim + at % half;
    const float* angle = table + ((token / batch) * half + at % half) * 2;
    const float x = to_float(first[0]), y = to_float(first[half]), sine = direction * angle[1];
    first[0] = from_float<T>(x * angle[0] - y * sine);
    first[half] = from_float<T>(y * angle[0] + x * sine);
  }
}

template <typename T>
__global__ void any_embedding_forward_kernel(const T* table, const int32_t* ids, T* y, int64_t cols, int64_t vocab,
                                             int64_t first) {
  const int64_t id = ids[blockIdx.x] - first;
  const bool mine = id >= 0 && id < vocab;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[blockIdx.x * cols + c] = mine ? table[id * cols + c] : from_float<T>(0.0f);
}

template <typename T>
__global__ void any_embedding_backward_kernel(const T* dy, const int32_t* ids, float* dtable, int64_t tokens,
                                              int64_t cols, int64_t first) {
  const int64_t id = first + blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    float sum = 0.0f;
    for (int64_t t = 0; t < tokens; ++t)
      if (ids[t] == id) sum += to_float(dy[t * cols + c]);
    dtable[blockIdx.x * cols + c] += sum;
  }
}

// Strides of packed rows, in elements.
struct AnyAttention {
  int64_t batch, seq, d;
  int heads, kv_heads;
  bool causal;
  float scale;
  __device__ int64_t row() const { return (heads + 2 * kv_heads) * d; }
  __device__ int64_t query(int64_t s, int64_t b, int64_t head) const { return (s * batch + b) * row() + head * d; }
  __device__ int64_t key(int64_t s, int64_t b, int64_t group) const { return query(s, b, heads + group); }
  __device__ int64_t value(int64_t s, int64_t b, int64_t group) const { return query(s, b, heads + kv_heads + group); }
  __device__ int64_t out(int64_t s, int64_t b, int64_t head) const { return ((s * batch + b) * heads + head) * d; }
};

template <typename T>
__device__ float dot(const T* a, const T* b, int64_t d) {
  float sum = 0.0f;
  for (int64_t i = 0; i < d; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

// A block a query: scores in dynamic shared memory, softmax, then each thread sums some output elements.
template <typename T>
__global__ void any_attention_forward_kernel(AnyAttention a, const T* qkv, T* out, float* lse) {
  extern __shared__ float scores[];
  __shared__ float scratch[32];
  const int64_t i = blockIdx.x, b = blockIdx.z, head = blockIdx.y, group = head / (a.heads / a.kv_heads);
  const int64_t keys = a.causal ? i + 1 : a.seq;
  float top = -INFINITY;
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) {
    scores[j] = a.scale * dot(qkv + a.query(i, b, head), qkv + a.key(j, b, group), a.d);
    top = fmaxf(top, scores[j]);
  }
  top = block_max(top, scratch);
  float sum = 0.0f;
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) sum += scores[j] = expf(scores[j] - top);
  sum = block_sum(sum, scratch);
  __syncthreads();
  for (int64_t e = threadIdx.x; e < a.d; e += blockDim.x) {
    float value = 0.0f;
    for (int64_t j = 0; j < keys; ++j) value += scores[j] * to_float(qkv[a.value(j, b, group) + e]);
    out[a.out(i, b, head) + e] = from_float<T>(value / sum);
  }
  if (threadIdx.x == 0) lse[(b * a.heads + head) * a.seq + i] = top + logf(sum);
}

template <typename T>
__global__ void any_attention_delta_kernel(AnyAttention a, const T* out, const T* dout, float* delta) {
  const int64_t i = blockIdx.x, b = blockIdx.z, head = blockIdx.y;
  const float sum = dot(out + a.out(i, b, head), dout + a.out(i, b, head), a.d);
  if (threadIdx.x == 0) delta[(b * a.heads + head) * a.seq + i] = sum;
}

// dS of query i and key j, and P.
template <typename T>
__device__ float score_gradient(const AnyAttention& a, const T* qkv, const T* dout, const float* lse,
                                const float* delta, int64_t i, int64_t j, int64_t b, int64_t head, float& probability) {
  const int64_t group = head / (a.heads / a.kv_heads), at = (b * a.heads + head) * a.seq + i;
  probability = expf(a.scale * dot(qkv + a.query(i, b, head), qkv + a.key(j, b, group), a.d) - lse[at]);
  return probability * (dot(dout + a.out(i, b, head), qkv + a.value(j, b, group), a.d) - delta[at]) * a.scale;
}

// A block a query: dS of all its keys, then dQ.
template <typename T>
__global__ void any_attention_dq_kernel(AnyAttention a, const T* qkv, const T* dout, const float* lse,
                                        const float* delta, T* dqkv) {
  extern __shared__ float ds[];
  const int64_t i = blockIdx.x, b = blockIdx.z, head = blockIdx.y, group = head / (a.heads / a.kv_heads);
  const int64_t keys = a.causal ? i + 1 : a.seq;
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) {
    float p;
    ds[j] = score_gradient(a, qkv, dout, lse, delta, i, j, b, head, p);
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < a.d; e += blockDim.x) {
    float sum = 0.0f;
    for (int64_t j = 0; j < keys; ++j) sum += ds[j] * to_float(qkv[a.key(j, b, group) + e]);
    dqkv[a.query(i, b, head) + e] = from_float<T>(sum);
  }
}

// A block a key: over the query heads of its group in order, P and dS of all queries, then dK and dV.
template <typename T>
__global__ void any_attention_dkv_kernel(AnyAttention a, const T* qkv, const T* dout, const float* lse,
                                         const float* delta, T* dqkv) {
  extern __shared__ float both[];  // dS, then P
  const int64_t j = blockIdx.x, b = blockIdx.z, group = blockIdx.y, ratio = a.heads / a.kv_heads;
  const int64_t first = a.causal ? j : 0;
  for (int64_t e0 = 0; e0 < a.d; e0 += blockDim.x) {
    const int64_t e = e0 + threadIdx.x;
    float dk = 0.0f, dv = 0.0f;
    for (int64_t head = group * ratio; head < (group + 1) * ratio; ++head) {
      __syncthreads();
      for (int64_t i = first + threadIdx.x; i < a.seq; i += blockDim.x)
        both[i] = score_gradient(a, qkv, dout, lse, delta, i, j, b, head, both[a.seq + i]);
      __syncthreads();
      if (e >= a.d) continue;
      for (int64_t i = first; i < a.seq; ++i) {
        dk += both[i] * to_float(qkv[a.query(i, b, head) + e]);
        dv += both[a.seq + i] * to_float(dout[a.out(i, b, head) + e]);
      }
    }
    if (e >= a.d) continue;
    dqkv[a.key(j, b, group) + e] = from_float<T>(dk);
    dqkv[a.value(j, b, group) + e] = from_float<T>(dv);
  }
}

template <typename Call>
Status by_element(const char* kernel, Element element, Call&& call) {
  if (element == Element::kF32)
    call(float{});
  else
    call(bf16{});
  return launched(kernel);
}

unsigned blocks(int64_t count) {
  return static_cast<unsigned>(count);
}

AnyAttention attention(const AttentionShape& s, float scale) {
  return {s.batch, s.seq, s.head_dim, static_cast<int>(s.heads), static_cast<int>(s.kv_heads), s.causal, scale};
}

template <typename Kernel>
Status allow_shared(Kernel kernel, int64_t bytes) {
  if (bytes <= 48 * 1024) return {};
  if (bytes > 200 * 1024)
    return fail(ErrorCode::kUnavailable,
                "unfused attention: the sequence needs " + std::to_string(bytes) + " B of shared memory",
                "use attention_backend = flash or fused");
  return ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "unfused attention");
}

}  // namespace

bool vectorizes(int64_t cols, std::initializer_list<const void*> addresses) {
  return cols % 8 == 0 && std::all_of(addresses.begin(), addresses.end(),
                                      [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 32 == 0; });
}

Status any_norm_forward(const NormForward& a, cudaStream_t stream) {
  return by_element("any_norm_forward", a.element, [&]<typename T>(T) {
    any_norm_forward_kernel<T><<<blocks(a.shape.rows), kBlock, 0, stream>>>(
        static_cast<const T*>(a.x), static_cast<const T*>(a.weight), static_cast<T*>(a.y), a.rstd, a.shape.cols, a.eps);
  });
}

Status any_norm_backward(const NormBackward& a, cudaStream_t stream) {
  return by_element("any_norm_backward", a.element, [&]<typename T>(T) {
    const auto *x = static_cast<const T*>(a.x), *dy = static_cast<const T*>(a.dy);
    any_norm_weight_kernel<T><<<blocks(a.shape.cols), kBlock, 0, stream>>>(x, dy, a.rstd, a.shape.rows, a.shape.cols,
                                                                           a.dweight, a.accumulate);
    any_norm_backward_kernel<T><<<blocks(a.shape.rows), kBlock, 0, stream>>>(x, dy, static_cast<const T*>(a.dresidual),
                                                                             static_cast<const T*>(a.weight), a.rstd,
                                                                             static_cast<T*>(a.dx), a.shape.cols);
  });
}

Status any_swiglu_forward(Element element, RowShape shape, const void* gate_up, void* y, cudaStream_t stream) {
  return by_element("any_swiglu_forward", element, [&]<typename T>(T) {
    any_swiglu_forward_kernel<T>
        <<<blocks(shape.rows), kBlock, 0, stream>>>(static_cast<const T*>(gate_up), static_cast<T*>(y), shape.cols);
  });
}

Status any_swiglu_backward(Element element, RowShape shape, const void* gate_up, const void* dy, void* dgate_up,
                           cudaStream_t stream) {
  return by_element("any_swiglu_backward", element, [&]<typename T>(T) {
    any_swiglu_backward_kernel<T><<<blocks(shape.rows), kBlock, 0, stream>>>(
        static_cast<const T*>(gate_up), static_cast<const T*>(dy), static_cast<T*>(dgate_up), shape.cols);
  });
}

Status any_rope(const Rope& a, cudaStream_t stream) {
  return by_element("any_rope", a.element, [&]<typename T>(T) {
    any_rope_kernel<T><<<blocks(a.tokens), kBlock, 0, stream>>>(static_cast<T*>(a.qkv), a.table, a.batch,
                                                                a.heads + a.kv_heads, a.heads + 2 * a.kv_heads,
                                                                a.head_dim, a.backward ? -1.0f : 1.0f);
  });
}

Status any_embedding_forward(const Embedding& a, const void* table, void* y, cudaStream_t stream) {
  return by_element("any_embedding_forward", a.element, [&]<typename T>(T) {
    any_embedding_forward_kernel<T><<<blocks(a.tokens), kBlock, 0, stream>>>(
        static_cast<const T*>(table), a.ids, static_cast<T*>(y), a.cols, a.vocab, a.first);
  });
}

Status any_embedding_backward(const Embedding& a, const void* dy, float* dtable, cudaStream_t stream) {
  return by_element("any_embedding_backward", a.element, [&]<typename T>(T) {
    any_embedding_backward_kernel<T>
        <<<blocks(a.vocab), kBlock, 0, stream>>>(static_cast<const T*>(dy), a.ids, dtable, a.tokens, a.cols, a.first);
  });
}

Status any_attention_forward(Element element, const AttentionForward& f, cudaStream_t stream) {
  const AttentionShape& s = f.shape;
  const dim3 grid(blocks(s.seq), blocks(s.heads), blocks(s.batch));
  Status allowed;
  const Status run = by_element("any_attention_forward", element, [&]<typename T>(T) {
    allowed = allow_shared(any_attention_forward_kernel<T>, s.seq * 4);
    if (allowed)
      any_attention_forward_kernel<T><<<grid, kBlock, static_cast<size_t>(s.seq * 4), stream>>>(
          attention(s, f.scale), static_cast<const T*>(f.qkv), static_cast<T*>(f.out), f.lse);
  });
  return allowed ? run : allowed;
}

Status any_attention_backward(Element element, const AttentionBackward& b, cudaStream_t stream) {
  const AttentionShape& s = b.shape;
  const AnyAttention a = attention(s, b.scale);
  const dim3 queries(blocks(s.seq), blocks(s.heads), blocks(s.batch)),
      keys(blocks(s.seq), blocks(s.kv_heads), blocks(s.batch));
  auto* delta = static_cast<float*>(b.workspace);
  Status allowed;
  const Status run = by_element("any_attention_backward", element, [&]<typename T>(T) {
    const auto *qkv = static_cast<const T*>(b.qkv), *dout = static_cast<const T*>(b.dout);
    allowed = allow_shared(any_attention_dq_kernel<T>, s.seq * 4);
    if (allowed) allowed = allow_shared(any_attention_dkv_kernel<T>, s.seq * 8);
    if (!allowed) return;
    any_attention_delta_kernel<T><<<queries, 32, 0, stream>>>(a, static_cast<const T*>(b.out), dout, delta);
    any_attention_dq_kernel<T><<<queries, kBlock, static_cast<size_t>(s.seq * 4), stream>>>(a, qkv, dout, b.lse, delta,
                                                                                            static_cast<T*>(b.dqkv));
    any_attention_dkv_kernel<T>
        <<<keys, kBlock, static_cast<size_t>(s.seq * 8), stream>>>(a, qkv, dout, b.lse, delta, static_cast<T*>(b.dqkv));
  });
  return allowed ? run : allowed;
}

}  // namespace mbb::trainer::cuda
