// Attention without tiles: a block a query (or a key), its scores in shared memory.
#include "trainer/ops/cuda/general_attention.h"

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;

// What a kernel needs of the arguments, by value.
template <typename T>
struct View {
  int64_t batch, queries, keys, q_row, kv_row, key_offset, value_offset, first_head;
  int heads, kv_heads, d, dv, window, bucket_count;
  bool causal, sinks;
  float scale;
  double dropout;
  uint64_t stream;
  const T *q, *kv, *weight;
  const int32_t *buckets, *samples;
  PackSpans packs;
  const float* record;
  const int32_t *query_places, *key_places;
  int64_t all_queries, all_keys;

  __device__ int64_t query_place(int64_t i) const { return query_places == nullptr ? i : query_places[i]; }
  __device__ int64_t key_place(int64_t j) const { return key_places == nullptr ? j : key_places[j]; }
  __device__ int64_t group(int64_t head) const { return head / (heads / kv_heads); }
  __device__ int64_t query_at(int64_t i, int64_t b, int64_t head) const { return (i * batch + b) * q_row + head * d; }
  __device__ int64_t key_at(int64_t j, int64_t b, int64_t g) const {
    return (j * batch + b) * kv_row + key_offset + g * d;
  }
  __device__ int64_t value_at(int64_t j, int64_t b, int64_t g) const {
    return (j * batch + b) * kv_row + value_offset + g * dv;
  }
  __device__ int64_t out_at(int64_t i, int64_t b, int64_t head) const { return ((i * batch + b) * heads + head) * dv; }
  __device__ int64_t row_at(int64_t i, int64_t b, int64_t head) const { return (b * heads + head) * queries + i; }
  // Keys [begin, end) of a query; queries [first, last) of a key.
  __device__ int64_t begin(int64_t i) const {
    if (query_places != nullptr) return 0;
    const int64_t first_seen = packs.key_begin != nullptr ? packs.key_begin[i] : 0;
    return causal && window > 0 ? max(first_seen, i + 1 - window) : first_seen;
  }
  // Of a pair inside both.
  __device__ bool sees(int64_t i, int64_t j) const {
    if (query_places == nullptr) return true;
    const int64_t distance = query_place(i) - key_place(j);
    return !causal || (distance >= 0 && (window == 0 || distance < window));
  }
  __device__ int64_t end(int64_t i) const {
    if (query_places != nullptr) return keys;
    return causal ? i + 1 : packs.key_past != nullptr ? packs.key_past[i] : keys;
  }
  __device__ int64_t first(int64_t j) const {
    if (query_places != nullptr) return 0;
    return causal ? j : packs.query_begin != nullptr ? packs.query_begin[j] : 0;
  }
  __device__ int64_t last(int64_t j) const {
    if (query_places != nullptr) return queries;
    const int64_t last_seen = packs.query_past != nullptr ? packs.query_past[j] : queries;
    return causal && window > 0 ? min(last_seen, j + window) : last_seen;
  }

  __device__ float score(int64_t i, int64_t j, int64_t b, int64_t head) const {
    const T *a = q + query_at(i, b, head), *k = kv + key_at(j, b, group(head));
    float sum = 0.0f;
    for (int e = 0; e < d; ++e) sum += to_float(a[e]) * to_float(k[e]);
    sum *= scale;
    return bucket_count == 0 ? sum : sum + to_float(weight[head * bucket_count + bucket(i, j)]);
  }
  __device__ int bucket(int64_t i, int64_t j) const { return buckets[key_place(j) - query_place(i) + all_queries - 1]; }
  // 0, or 1 / (1 - p).
  __device__ float kept(int64_t i, int64_t j, int64_t b, int64_t head) const {
    if (dropout == 0.0) return 1.0f;
    const RandomStream random(rng_mix(stream ^ (static_cast<uint64_t>(record[StepRecord::kStep]) + kRngGamma)));
    const int64_t element = ((first_head + head) * all_queries + query_place(i)) * all_keys + key_place(j);
    const float draw = random.uniform(static_cast<uint64_t>(samples[b]), static_cast<uint64_t>(element));
    return static_cast<double>(draw) < dropout ? 0.0f : static_cast<float>(1.0 / (1.0 - dropout));
  }
};

template <typename T>
View<T> view(const GeneralAttention& g) {
  const AttentionAttrs& a = *g.attrs;
  return {g.batch,
          g.queries,
          g.keys,
          g.q_row,
          g.kv_row,
          g.key_offset,
          g.value_offset,
          g.first_head,
          a.heads,
          a.kv_heads,
          a.head_dim,
          a.value_dim(),
          a.window,
          a.relative_buckets,
          a.causal,
          a.sinks,
          a.scale,
          a.dropout,
          static_cast<uint64_t>(a.dropout_stream),
          static_cast<const T*>(g.q),
          static_cast<const T*>(g.kv),
          static_cast<const T*>(g.weight),
          g.buckets,
          g.samples,
          g.packs,
          g.record,
          g.query_places,
          g.key_places,
          g.all_queries > 0 ? g.all_queries : g.queries,
          g.all_keys > 0 ? g.all_keys : g.keys};
}

template <typename T>
__global__ void forward_kernel(View<T> a, T* out, float* lse) {
  extern __shared__ float scores[];
  __shared__ float scratch[32];
  const int64_t i = blockIdx.x, head = blockIdx.y, b = blockIdx.z, begin = a.begin(i), end = a.end(i);
  float top = a.sinks ? to_float(a.weight[head]) : -INFINITY;
  const float sink = top;
  for (int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    scores[j - begin] = a.query_places == nullptr || a.sees(i, j) ? a.score(i, j, b, head) : -INFINITY;
    top = fmaxf(top, scores[j - begin]);
  }
  top = block_max(top, scratch);
  float sum = 0.0f;
  for (int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    const float weight = top == -INFINITY ? 0.0f : expf(scores[j - begin] - top);
    sum += weight;
    scores[j - begin] = weight * a.kept(i, j, b, head);
  }
  sum = block_sum(sum, scratch) + (a.sinks ? expf(sink - top) : 0.0f);
  __syncthreads();
  const int64_t group = a.group(head);
  for (int e = threadIdx.x; e < a.dv; e += blockDim.x) {
    float value = 0.0f;
    for (int64_t j = begin; j < end; ++j) value += scores[j - begin] * to_float(a.kv[a.value_at(j, b, group) + e]);
    out[a.out_at(i, b, head) + e] = from_float<T>(sum > 0.0f ? value / sum : 0.0f);
  }
  if (threadIdx.x == 0) lse[a.row_at(i, b, head)] = sum > 0.0f ? top + logf(sum) : -INFINITY;
}

template <typename T>
__global__ void delta_kernel(View<T> a, const T* out, const T* dout, float* delta) {
  const int64_t i = blockIdx.x, head = blockIdx.y, b = blockIdx.z, at = a.out_at(i, b, head);
  float sum = 0.0f;
  for (int e = threadIdx.x; e < a.dv; e += 32) sum += to_float(out[at + e]) * to_float(dout[at + e]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) delta[a.row_at(i, b, head)] = sum;
}

// Log-sum-exp of the queries of a whole, of which these are rows from `first` on.
struct Lse {
  const float* data;
  int64_t rows, first;
  template <typename T>
  __device__ float at(const View<T>& a, int64_t i, int64_t b, int64_t head) const {
    return data[(b * a.heads + head) * rows + first + i];
  }
};

// dS of a pair before the scale, and the kept probability.
template <typename T>
__device__ float score_gradient(const View<T>& a, const T* dout, const Lse& lse, const float* delta, int64_t i,
                                int64_t j, int64_t b, int64_t head, float& probability) {
  const int64_t row = a.row_at(i, b, head);
  const float p = expf(a.score(i, j, b, head) - lse.at(a, i, b, head)), kept = a.kept(i, j, b, head);
  const T *d = dout + a.out_at(i, b, head), *v = a.kv + a.value_at(j, b, a.group(head));
  float dot = 0.0f;
  for (int e = 0; e < a.dv; ++e) dot += to_float(d[e]) * to_float(v[e]);
  probability = p * kept;
  return p * (kept * dot - delta[row]);
}

// A block a query: dS of its keys, then dQ, and its part of every bucket's gradient.
template <typename T>
__global__ void dq_kernel(View<T> a, const T* dout, Lse lse, const float* delta, T* dq, float* bucket_parts) {
  extern __shared__ float ds[];
  const int64_t i = blockIdx.x, head = blockIdx.y, b = blockIdx.z, begin = a.begin(i), end = a.end(i);
  for (int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    float p;
    const bool seen = a.query_places == nullptr || a.sees(i, j);
    ds[j - begin] = seen ? score_gradient(a, dout, lse, delta, i, j, b, head, p) : 0.0f;
  }
  __syncthreads();
  const int64_t group = a.group(head);
  for (int e = threadIdx.x; e < a.d; e += blockDim.x) {
    float sum = 0.0f;
    for (int64_t j = begin; j < end; ++j) sum += ds[j - begin] * to_float(a.kv[a.key_at(j, b, group) + e]);
    dq[a.query_at(i, b, head) + e] = from_float<T>(a.scale * sum);
  }
  for (int k = threadIdx.x; k < a.bucket_count; k += blockDim.x) {
    float sum = 0.0f;
    for (int64_t j = begin; j < end; ++j)
      if (a.bucket(i, j) == k) sum += ds[j - begin];
    bucket_parts[a.row_at(i, b, head) * a.bucket_count + k] = sum;
  }
}

// A block a key: over the query heads of its group in order, dS and P of its queries, then dK and dV.
template <typename T>
__global__ void dkv_kernel(View<T> a, const T* dout, Lse lse, const float* delta, T* dkv) {
  extern __shared__ float both[];  // dS, then P, each in whole 16-byte words
  const int64_t stride = (a.queries + 3) / 4 * 4;
  const int64_t j = blockIdx.x, group = blockIdx.y, b = blockIdx.z, ratio = a.heads / a.kv_heads;
  const int64_t first = a.first(j), last = a.last(j), span = max(last - first, int64_t{0});
  const int width = max(a.d, a.dv);
  for (int e0 = 0; e0 < width; e0 += static_cast<int>(blockDim.x)) {
    const int e = e0 + static_cast<int>(threadIdx.x);
    float dk = 0.0f, dv = 0.0f;
    for (int64_t head = group * ratio; head < (group + 1) * ratio; ++head) {
      __syncthreads();
      for (int64_t i = threadIdx.x; i < span; i += blockDim.x) {
        both[i] = both[stride + i] = 0.0f;
        if (a.sees(first + i, j))
          both[i] = score_gradient(a, dout, lse, delta, first + i, j, b, head, both[stride + i]);
      }
      __syncthreads();
      for (int64_t i = 0; i < span; ++i) {
        if (e < a.d) dk += both[i] * to_float(a.q[a.query_at(first + i, b, head) + e]);
        if (e < a.dv) dv += both[stride + i] * to_float(dout[a.out_at(first + i, b, head) + e]);
      }
    }
    if (e < a.d) dkv[a.key_at(j, b, group) + e] = from_float<T>(a.scale * dk);
    if (e < a.dv) dkv[a.value_at(j, b, group) + e] = from_float<T>(dv);
  }
}

// A block a head: the sink takes probability exp(sink - lse) of every row.
template <typename T>
__global__ void sink_kernel(View<T> a, Lse lse, const float* delta, float* dsinks, bool accumulate) {
  __shared__ float scratch[32];
  const int64_t head = blockIdx.x;
  const float sink = to_float(a.weight[head]);
  float sum = 0.0f;
  for (int64_t at = threadIdx.x; at < a.batch * a.queries; at += blockDim.x) {
    const int64_t i = at % a.queries, b = at / a.queries;
    sum -= expf(sink - lse.at(a, i, b, head)) * delta[a.row_at(i, b, head)];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dsinks[head] = (accumulate ? dsinks[head] : 0.0f) + sum;
}

// A block an element of the bias table.
template <typename T>
__global__ void bucket_kernel(View<T> a, const float* parts, float* dtable, bool accumulate) {
  __shared__ float scratch[32];
  const int64_t head = blockIdx.x / a.bucket_count, bucket = blockIdx.x % a.bucket_count;
  float sum = 0.0f;
  for (int64_t at = threadIdx.x; at < a.batch * a.queries; at += blockDim.x)
    sum += parts[a.row_at(at % a.queries, at / a.queries, head) * a.bucket_count + bucket];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dtable[blockIdx.x] = (accumulate ? dtable[blockIdx.x] : 0.0f) + sum;
}

unsigned blocks(int64_t count) {
  return static_cast<unsigned>(count);
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

// A grid has a block a query and head of a sequence.
Status fits_grid(const GeneralAttention& g) {
  constexpr int64_t kMost = 65535;
  if (g.batch <= kMost && g.attrs->heads <= kMost) return {};
  return fail(ErrorCode::kUnavailable,
              "unfused attention: " + std::to_string(g.batch) + " sequences of " + std::to_string(g.attrs->heads) +
                  " heads, " + std::to_string(kMost) + " of either are the most",
              "take a smaller micro-batch");
}

int64_t rows_of(const GeneralAttention& g) {
  return g.batch * g.attrs->heads * g.queries;
}

// Scores a query has at most, in whole 16-byte words: the compiler reads the last few of a sum as one vector.
int64_t scores_of(const GeneralAttention& g) {
  const bool windowed = g.attrs->causal && g.attrs->window > 0 && g.query_places == nullptr;
  const int64_t most = windowed ? std::min<int64_t>(g.attrs->window, g.keys) : g.keys;
  return (most + 3) / 4 * 4;
}

template <typename T>
Status forward(const GeneralAttention& g, T* out, float* lse, cudaStream_t stream) {
  const dim3 grid(blocks(g.queries), blocks(g.attrs->heads), blocks(g.batch));
  const int64_t bytes = scores_of(g) * 4;
  MB_TRY(fits_grid(g));
  MB_TRY(allow_shared(forward_kernel<T>, bytes));
  forward_kernel<T><<<grid, kBlock, static_cast<size_t>(bytes), stream>>>(view<T>(g), out, lse);
  return launched("general_attention_forward");
}

template <typename T>
Status backward(const GeneralAttention& g, const GeneralAttentionGrad& d, cudaStream_t stream) {
  const View<T> a = view<T>(g);
  const dim3 queries(blocks(g.queries), blocks(g.attrs->heads), blocks(g.batch));
  const dim3 keys(blocks(g.keys), blocks(g.attrs->kv_heads), blocks(g.batch));
  auto* delta = static_cast<float*>(d.workspace);
  float* parts = delta + rows_of(g);
  const auto* dout = static_cast<const T*>(d.dout);
  const Lse lse{d.lse, d.lse_rows > 0 ? d.lse_rows : g.queries, d.first_query};
  const int64_t query_bytes = scores_of(g) * 4, key_bytes = (g.queries + 3) / 4 * 4 * 8;
  MB_TRY(fits_grid(g));
  MB_TRY(allow_shared(dq_kernel<T>, query_bytes));
  MB_TRY(allow_shared(dkv_kernel<T>, key_bytes));
  delta_kernel<T><<<queries, 32, 0, stream>>>(a, static_cast<const T*>(d.out), dout, delta);
  dq_kernel<T><<<queries, kBlock, static_cast<size_t>(query_bytes), stream>>>(a, dout, lse, delta,
                                                                              static_cast<T*>(d.dq), parts);
  dkv_kernel<T><<<keys, kBlock, static_cast<size_t>(key_bytes), stream>>>(a, dout, lse, delta, static_cast<T*>(d.dkv));
  if (a.sinks && d.dweight != nullptr)
    sink_kernel<T><<<blocks(a.heads), 256, 0, stream>>>(a, lse, delta, d.dweight, g.attrs->accumulate);
  if (a.bucket_count > 0)
    bucket_kernel<T>
        <<<blocks(int64_t{a.heads} * a.bucket_count), 256, 0, stream>>>(a, parts, d.dweight, g.attrs->accumulate);
  return launched("general_attention_backward");
}

}  // namespace

Status general_attention_forward(const GeneralAttention& g, void* out, float* lse, const Launch& launch) {
  return g.element == Element::kF32 ? forward<float>(g, static_cast<float*>(out), lse, launch.stream)
                                    : forward<bf16>(g, static_cast<bf16*>(out), lse, launch.stream);
}

int64_t general_attention_workspace(const GeneralAttention& g) {
  return rows_of(g) * 4 * (1 + g.attrs->relative_buckets);
}

Status general_attention_backward(const GeneralAttention& g, const GeneralAttentionGrad& grad, const Launch& launch) {
  return g.element == Element::kF32 ? backward<float>(g, grad, launch.stream) : backward<bf16>(g, grad, launch.stream);
}

}  // namespace mbb::trainer::cuda
