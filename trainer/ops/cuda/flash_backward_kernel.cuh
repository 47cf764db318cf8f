// Backward of flash attention in two deterministic kernels: one owns a block of keys (dK, dV), one a block of queries
// (dQ).
//
// With P = exp(scale*S - lse), dP = dO V^T, delta = rowsum(dO * O): dS = P * (dP - delta) * scale; dV = P^T dO, dK =
// dS^T Q, dQ = dS K. Nothing is added by atomics; a key block walks all query heads of its group in order.
#pragma once

#include "trainer/ops/cuda/flash_kernel.cuh"

namespace mbb::trainer::cuda {

// delta[b, head, s] = sum over d of dO * O; one warp a row.
template <int kDim>
__global__ void __launch_bounds__(256) flash_delta_kernel(FlashParams p, float* delta, int64_t rows) {
  const int64_t at = int64_t{blockIdx.x} * 8 + (threadIdx.x >> 5);
  if (at >= rows) return;
  const int lane = threadIdx.x & 31;
  const int64_t position = at % p.seq, head = (at / p.seq) % p.heads, batch = at / (p.seq * p.heads);
  const int64_t offset = batch * p.out.batch_stride + position * p.out.row_stride + head * kDim;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) {
    const auto o = reinterpret_cast<const __nv_bfloat162*>(p.out.base + offset)[i * 32 + lane];
    const auto d = reinterpret_cast<const __nv_bfloat162*>(p.dout.base + offset)[i * 32 + lane];
    const float2 a = __bfloat1622float2(o), b = __bfloat1622float2(d);
    sum += a.x * b.x + a.y * b.y;
  }
  sum = warp_sum(sum);
  if (lane == 0) delta[at] = sum;
}

// Two products over the same rows: left[16, kColumns] = a_tile rows * b_tile^T, right likewise of the other pair.
template <int kDim, int kColumns>
__device__ __forceinline__ void two_products(float (&left)[kColumns / 8][4], float (&right)[kColumns / 8][4],
                                             uint32_t left_a, uint32_t left_b, uint32_t right_a, uint32_t right_b,
                                             int row) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    uint32_t la[4], ra[4];
    load_a<kDim>(la, left_a, row, i);
    load_a<kDim>(ra, right_a, row, i);
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t lb[4], rb[4];
      load_b_rows<kDim>(lb, left_b, n * 16, i);
      load_b_rows<kDim>(rb, right_b, n * 16, i);
      mma(left[2 * n], la, lb[0], lb[1]);
      mma(left[2 * n + 1], la, lb[2], lb[3]);
      mma(right[2 * n], ra, rb[0], rb[1]);
      mma(right[2 * n + 1], ra, rb[2], rb[3]);
    }
  }
}

constexpr float kLog2E = 1.4426950408889634f;

// A step of the key kernel: 32 queries of one head.
struct QueryStep {
  int head;
  int64_t query0;
};

// Q and dO rows of a step; the log-sum-exp and delta of its queries and, bounded, where their keys begin and end.
template <int kDim, int kQueries, int kThreads, bool kBounded>
__device__ __forceinline__ void load_query_step(const FlashParams& p, QueryStep at, int batch, uint32_t tile,
                                                float* values) {
  load_tile<kDim, kQueries, kThreads>(tile, p.q.base + batch * p.q.batch_stride + int64_t{at.head} * kDim,
                                      p.q.row_stride, at.query0, p.seq);
  load_tile<kDim, kQueries, kThreads>(tile + kQueries * kDim * 2,
                                      p.dout.base + batch * p.dout.batch_stride + int64_t{at.head} * kDim,
                                      p.dout.row_stride, at.query0, p.seq);
  if (threadIdx.x < 2 * kQueries) {
    const int i = threadIdx.x % kQueries;
    const int64_t from = (int64_t{batch} * p.heads + at.head) * p.seq + at.query0 + i;
    const bool valid = at.query0 + i < p.seq;
    values[threadIdx.x] = !valid ? 0.0f : threadIdx.x >= kQueries ? p.delta[from] : p.lse[from];
  } else if (kBounded && threadIdx.x < 4 * kQueries) {
    const int64_t query = at.query0 + threadIdx.x % kQueries;
    const int64_t bound = threadIdx.x < 3 * kQueries ? p.span.begin(query) : p.span.end(query);
    values[threadIdx.x] = __int_as_float(static_cast<int>(bound));
  }
  copies_commit();
}

// Transposed scores (rows are keys) become P, and dP becomes dS / scale. Behind `delta` lie the queries' first keys and
// where their keys end.
template <int kQueries, bool kBounded>
__device__ __forceinline__ void key_gradients(const FlashParams& p, float (&scores)[kQueries / 8][4],
                                              float (&dp)[kQueries / 8][4], const float* lse, const float* delta,
                                              int64_t query0, int64_t key_row) {
  const int pair = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = n * 8 + pair * 2 + (i & 1);
      const int64_t query = query0 + column, key = key_row + (i >> 1) * 8;
      bool seen = query < p.seq && key < p.seq && (!p.causal || key <= query);
      if (kBounded)
        seen = seen && key >= __float_as_int(delta[kQueries + column]) &&
               key < __float_as_int(delta[2 * kQueries + column]);
      const float prob = seen ? exp2f(scores[n][i] * p.scale_log2 - lse[column] * kLog2E) : 0.0f;
      dp[n][i] = prob * (dp[n][i] - delta[column]);
      scores[n][i] = prob;
    }
  }
}

// 64 keys a block (4 warps of 16), 32 queries a step. Scores are computed transposed: rows are keys, columns queries.
template <int kDim, bool kBounded>
__global__ void __launch_bounds__(128) flash_backward_kv_kernel(FlashParams p) {
  constexpr int kKeys = 64, kQueries = 32, kThreads = 128, kValues = (kBounded ? 4 : 2) * kQueries;
  constexpr uint32_t kTile = kQueries * kDim * 2;
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t k_tile = shared_address(smem), v_tile = k_tile + kKeys * kDim * 2, stages = v_tile + kKeys * kDim * 2;
  auto* row_values =
      reinterpret_cast<float*>(smem + 2 * kKeys * kDim * 2 + 4 * kTile);  // [stage][lse, delta, begin, end][kQueries]
  const int warp = threadIdx.x >> 5, group = (threadIdx.x & 31) >> 2;
  const int64_t first = int64_t{blockIdx.x} * kKeys, row = first + warp * 16 + group;
  const int kv_head = blockIdx.y % p.kv_heads, batch = blockIdx.y / p.kv_heads, ratio = p.heads / p.kv_heads;
  const int64_t k_offset = batch * p.k.batch_stride + int64_t{kv_head} * kDim;
  const int64_t v_offset = batch * p.v.batch_stride + int64_t{kv_head} * kDim;
  load_tile<kDim, kKeys, kThreads>(k_tile, p.k.base + k_offset, p.k.row_stride, first, p.seq);
  load_tile<kDim, kKeys, kThreads>(v_tile, p.v.base + v_offset, p.v.row_stride, first, p.seq);
  const int64_t first_query = kBounded ? p.span.queries_begin(first) : p.causal ? first : 0;
  const int first_step = static_cast<int>(first_query / kQueries);
  const int64_t last = kBounded ? p.span.queries_end(first + kKeys - 1) : p.seq;
  const int steps = static_cast<int>((last + kQueries - 1) / kQueries) - first_step, total = steps * ratio;
  const auto step_at = [&](int at) {
    return QueryStep{kv_head * ratio + at / steps, int64_t{first_step + at % steps} * kQueries};
  };
  const auto load_step = [&](int at) {
    load_query_step<kDim, kQueries, kThreads, kBounded>(p, step_at(at), batch, stages + (at & 1) * 2 * kTile,
                                                        row_values + (at & 1) * kValues);
  };
  load_step(0);

  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  for (int at = 0; at < total; ++at) {
    copies_wait<0>();
    __syncthreads();
    if (at + 1 < total) load_step(at + 1);
    const uint32_t q_tile = stages + (at & 1) * 2 * kTile, do_tile = q_tile + kTile;
    const float* lse = row_values + (at & 1) * kValues;
    float scores[kQueries / 8][4] = {}, dp[kQueries / 8][4] = {};
    two_products<kDim, kQueries>(scores, dp, k_tile, q_tile, v_tile, do_tile, warp * 16);
    key_gradients<kQueries, kBounded>(p, scores, dp, lse, lse + kQueries, step_at(at).query0, row);
    accumulate_rows<kDim, kQueries>(dv, scores, do_tile);
    accumulate_rows<kDim, kQueries>(dk, dp, q_tile);
  }
  store_rows<kDim>(p.dk + k_offset, p.k.row_stride, row, p.seq, dk, p.scale, p.scale);
  store_rows<kDim>(p.dv + v_offset, p.v.row_stride, row, p.seq, dv, 1.0f, 1.0f);
}

// dP becomes dS / scale, from scores whose rows are queries.
template <int kKeys, bool kBounded>
__device__ __forceinline__ void query_gradients(const FlashParams& p, const float (&scores)[kKeys / 8][4],
                                                float (&dp)[kKeys / 8][4], const float (&lse)[2],
                                                const float (&delta)[2], int64_t key0, int64_t row,
                                                const RowSpans& spans) {
  const int pair = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i >> 1;
      const int64_t key = key0 + n * 8 + pair * 2 + (i & 1), query = row + half * 8;
      const bool seen = key < p.seq && (!p.causal || key <= query) &&
                        (!kBounded || (key >= spans.begins[half] && (p.causal || key < spans.ends[half])));
      const float prob = seen ? exp2f(scores[n][i] * p.scale_log2 - lse[half]) : 0.0f;
      dp[n][i] = prob * (dp[n][i] - delta[half]);
    }
  }
}

// 64 queries a block (4 warps of 16), 32 keys a step.
template <int kDim, bool kBounded>
__global__ void __launch_bounds__(128) flash_backward_q_kernel(FlashParams p) {
  constexpr int kQueries = 64, kKeys = 32, kThreads = 128;
  constexpr uint32_t kTile = kKeys * kDim * 2;
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t q_tile = shared_address(smem), do_tile = q_tile + kQueries * kDim * 2,
                 stages = do_tile + kQueries * kDim * 2;
  const int warp = threadIdx.x >> 5, group = (threadIdx.x & 31) >> 2;
  const int64_t first = (int64_t{gridDim.x} - 1 - blockIdx.x) * kQueries, row = first + warp * 16 + group;
  const int head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads, kv_head = head / (p.heads / p.kv_heads);
  const bf16* k = p.k.base + batch * p.k.batch_stride + int64_t{kv_head} * kDim;
  const bf16* v = p.v.base + batch * p.v.batch_stride + int64_t{kv_head} * kDim;
  const int64_t q_offset = batch * p.q.batch_stride + int64_t{head} * kDim;
  const int64_t last = keys_end<kBounded>(p, first, kQueries);
  const int steps = static_cast<int>((last + kKeys - 1) / kKeys);
  const int first_step = kBounded ? static_cast<int>(p.span.begin(first) / kKeys) : 0;
  const auto load_step = [&](int step) {
    const uint32_t tile = stages + (step & 1) * 2 * kTile;
    load_tile<kDim, kKeys, kThreads>(tile, k, p.k.row_stride, int64_t{step} * kKeys, p.seq);
    load_tile<kDim, kKeys, kThreads>(tile + kTile, v, p.v.row_stride, int64_t{step} * kKeys, p.seq);
    copies_commit();
  };
  load_tile<kDim, kQueries, kThreads>(q_tile, p.q.base + q_offset, p.q.row_stride, first, p.seq);
  load_tile<kDim, kQueries, kThreads>(do_tile, p.dout.base + batch * p.dout.batch_stride + int64_t{head} * kDim,
                                      p.dout.row_stride, first, p.seq);
  load_step(first_step);

  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = row + half * 8, from = (int64_t{batch} * p.heads + head) * p.seq + query;
    lse[half] = query < p.seq ? p.lse[from] * kLog2E : 0.0f;
    delta[half] = query < p.seq ? p.delta[from] : 0.0f;
  }
  const RowSpans spans = spans_of<kBounded>(p, row);
  float dq[kDim / 8][4] = {};
  for (int step = first_step; step < steps; ++step) {
    copies_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load_step(step + 1);
    const uint32_t k_tile = stages + (step & 1) * 2 * kTile;
    float scores[kKeys / 8][4] = {}, dp[kKeys / 8][4] = {};
    two_products<kDim, kKeys>(scores, dp, q_tile, k_tile, do_tile, k_tile + kTile, warp * 16);
    query_gradients<kKeys, kBounded>(p, scores, dp, lse, delta, int64_t{step} * kKeys, row, spans);
    accumulate_rows<kDim, kKeys>(dq, dp, k_tile);
  }
  store_rows<kDim>(p.dq + q_offset, p.q.row_stride, row, p.seq, dq, p.scale, p.scale);
}

}  // namespace mbb::trainer::cuda
