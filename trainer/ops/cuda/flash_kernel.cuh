// Flash attention on tensor cores (mma m16n8k16, bf16 in, fp32 sums): online softmax, no score ever leaves the chip.
//
// Tiles lie in shared memory as rows of kDim bf16 in 16-byte chunks, chunk index XOR (row & 7): ldmatrix meets no bank
// twice. Fragments follow the mma layout: lane = 4*group + pair; a lane holds rows group and group + 8, columns 2*pair
// and + 1.
#pragma once

#include "trainer/ops/cuda/key_span.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// Heads inside [s, b, ...] rows: element (batch, position, head, i) at base + batch*batch_stride + position*row_stride
// + head*d.
struct HeadView {
  const bf16* base;
  int64_t row_stride;    // between positions
  int64_t batch_stride;  // between batches
};

struct FlashParams {
  HeadView q, k, v, out, dout;
  bf16 *to_out, *dq, *dk, *dv;  // outputs share the strides of their inputs
  float* lse;
  const float* delta;
  int64_t seq;
  int heads, kv_heads;
  float scale;       // of the scores
  float scale_log2;  // scale * log2(e): the softmax works in powers of two
  bool causal;
  KeySpan span;  // of kernels with kBounded: packs and windows, where not every other key is seen
};

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of kDim columns.
template <int kDim>
__device__ __forceinline__ uint32_t tile_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4));
}

// Rows first .. first+kRows of one head into a tile; rows past the sequence are zero.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(uint32_t tile, const bf16* head, int64_t row_stride, int64_t first,
                                          int64_t seq) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
    const bool valid = first + row < seq;
    copy16_async(tile + tile_offset<kDim>(row, chunk), head + (valid ? first + row : 0) * row_stride + chunk * 8,
                 valid);
  }
}

// A operand (16 rows from `row`, 16 columns from chunk pair `k`) of a row-major tile.
template <int kDim>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t tile, int row, int k) {
  const int lane = threadIdx.x & 31;
  load_matrix4(a, tile + tile_offset<kDim>(row + (lane & 15), 2 * k + (lane >> 4)));
}

// B operands of two neighbouring 8-column groups when the tile's rows are the n index: n from `row`, 16 k columns.
// b[0], b[1] belong to rows row..row+7 (k low, k high), b[2], b[3] to row+8..row+15.
template <int kDim>
__device__ __forceinline__ void load_b_rows(uint32_t (&b)[4], uint32_t tile, int row, int k) {
  const int lane = threadIdx.x & 31;
  load_matrix4(b, tile + tile_offset<kDim>(row + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
}

// B operands when the tile's rows are the k index: 16 k rows from `row`, two 8-column groups from chunk `chunk`.
template <int kDim>
__device__ __forceinline__ void load_b_columns(uint32_t (&b)[4], uint32_t tile, int row, int chunk) {
  const int lane = threadIdx.x & 31;
  load_matrix4_transposed(b, tile + tile_offset<kDim>(row + (lane & 15), chunk + (lane >> 4)));
}

// Accumulators of two neighbouring 8-column groups, rounded, are the A operand over these 16 columns.
__device__ __forceinline__ void accumulators_to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]);
  a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]);
  a[3] = pack_bf16(right[2], right[3]);
}

template <int kDim>
__device__ __forceinline__ void store_rows(bf16* head, int64_t row_stride, int64_t row, int64_t seq,
                                           const float (&acc)[kDim / 8][4], float low_factor, float high_factor) {
  const int pair = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    if (row < seq)
      *reinterpret_cast<uint32_t*>(head + row * row_stride + n * 8 + pair * 2) =
          pack_bf16(acc[n][0] * low_factor, acc[n][1] * low_factor);
    if (row + 8 < seq)
      *reinterpret_cast<uint32_t*>(head + (row + 8) * row_stride + n * 8 + pair * 2) =
          pack_bf16(acc[n][2] * high_factor, acc[n][3] * high_factor);
  }
}

// Scores of 16 query rows (fragments of all kDim columns) against kKeys rows of a tile.
template <int kDim, int kKeys>
__device__ __forceinline__ void scores_of(float (&scores)[kKeys / 8][4], const uint32_t (&q)[kDim / 16][4],
                                          uint32_t k_tile) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      load_b_rows<kDim>(b, k_tile, n * 16, i);
      mma(scores[2 * n], q[i], b[0], b[1]);
      mma(scores[2 * n + 1], q[i], b[2], b[3]);
    }
  }
}

// Where the keys of the lane's two rows begin and, of packs that look both ways, end.
struct RowSpans {
  int64_t begins[2] = {0, 0}, ends[2] = {0, 0};
};

// Keys past the sequence, or after their query when causal, become -inf, and those outside of their span, of the lane's
// two rows. `row` is the first of them.
template <int kKeys, bool kBounded>
__device__ __forceinline__ void mask_scores(float (&scores)[kKeys / 8][4], int64_t key0, int64_t row, int64_t seq,
                                            bool causal, const RowSpans& spans) {
  const int pair = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = key0 + n * 8 + pair * 2 + (i & 1), query = row + (i >> 1) * 8;
      if (key >= seq || (causal && key > query)) scores[n][i] = -INFINITY;
      if (kBounded && (key < spans.begins[i >> 1] || (!causal && key >= spans.ends[i >> 1]))) scores[n][i] = -INFINITY;
    }
  }
}

template <bool kBounded>
__device__ __forceinline__ RowSpans spans_of(const FlashParams& p, int64_t row) {
  RowSpans spans;
  if constexpr (kBounded) {
    for (int half = 0; half < 2; ++half) {
      spans.begins[half] = p.span.begin(row + 8 * half);
      spans.ends[half] = p.span.end(row + 8 * half);
    }
  }
  return spans;
}

// One behind the last key that a block of queries sees.
template <bool kBounded>
__device__ __forceinline__ int64_t keys_end(const FlashParams& p, int64_t first, int queries) {
  if (p.causal) return min(p.seq, first + queries);
  return kBounded ? p.span.end(first + queries - 1) : p.seq;
}

// What the online softmax keeps of the lane's two rows.
template <int kDim>
struct SoftmaxRows {
  float out[kDim / 8][4] = {};
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // over this lane's columns only
};

// Scores become probabilities relative to the new maximum; what was summed so far is scaled to it.
template <int kDim, int kKeys>
__device__ __forceinline__ void softmax_step(SoftmaxRows<kDim>& rows, float (&scores)[kKeys / 8][4], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.max[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float shift = top == -INFINITY ? 0.0f : top * scale_log2;
    const float keep = exp2f(rows.max[half] * scale_log2 - shift);
    rows.max[half] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& s = scores[n][2 * half + i];
        s = exp2f(s * scale_log2 - shift);
        sum += s;
      }
    }
    rows.sum[half] = rows.sum[half] * keep + sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      rows.out[n][2 * half] *= keep;
      rows.out[n][2 * half + 1] *= keep;
    }
  }
}

// acc[16 rows, kDim] += p[16 rows, kKeys] (rounded to bf16) * tile[kKeys, kDim].
template <int kDim, int kKeys>
__device__ __forceinline__ void accumulate_rows(float (&acc)[kDim / 8][4], const float (&p)[kKeys / 8][4],
                                                uint32_t tile) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    uint32_t a[4];
    accumulators_to_a(a, p[2 * i], p[2 * i + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      load_b_columns<kDim>(b, tile, i * 16, n * 2);
      mma(acc[2 * n], a, b[0], b[1]);
      mma(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Divides by the row sums, writes the output and the log-sum-exp.
template <int kDim>
__device__ __forceinline__ void finish_rows(const FlashParams& p, const SoftmaxRows<kDim>& rows, int batch, int head,
                                            int64_t row) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    factor[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int64_t query = row + half * 8;
    if ((threadIdx.x & 3) == 0 && query < p.seq)
      p.lse[(int64_t{batch} * p.heads + head) * p.seq + query] = rows.max[half] * p.scale + logf(sum);
  }
  bf16* to = p.to_out + batch * p.out.batch_stride + int64_t{head} * kDim;
  store_rows<kDim>(to, p.out.row_stride, row, p.seq, rows.out, factor[0], factor[1]);
}

// 128 queries a block (8 warps of 16 rows), 64 keys a step, K and V in two stages.
template <int kDim, bool kBounded>
__global__ void __launch_bounds__(256, 1) flash_forward_kernel(FlashParams p) {
  constexpr int kQueries = 128, kKeys = 64, kThreads = 256;
  constexpr uint32_t kTile = kKeys * kDim * 2;
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t q_tile = shared_address(smem), kv_tiles = q_tile + kQueries * kDim * 2;
  const int warp = threadIdx.x >> 5, group = (threadIdx.x & 31) >> 2;
  const int64_t first = (int64_t{gridDim.x} - 1 - blockIdx.x) * kQueries;  // longest rows first
  const int head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads, kv_head = head / (p.heads / p.kv_heads);
  const bf16* q = p.q.base + batch * p.q.batch_stride + int64_t{head} * kDim;
  const bf16* k = p.k.base + batch * p.k.batch_stride + int64_t{kv_head} * kDim;
  const bf16* v = p.v.base + batch * p.v.batch_stride + int64_t{kv_head} * kDim;
  const int64_t last = keys_end<kBounded>(p, first, kQueries);
  const int steps = static_cast<int>((last + kKeys - 1) / kKeys);
  const int first_step = kBounded ? static_cast<int>(p.span.begin(first) / kKeys) : 0;
  const int64_t all_begun = kBounded ? p.span.begin(first + kQueries - 1) : 0;   // keys that no row begins behind
  const int64_t none_ended = kBounded && !p.causal ? p.span.end(first) : p.seq;  // keys that no row ends in front of
  const auto load_step = [&](int step) {
    const uint32_t tile = kv_tiles + (step & 1) * 2 * kTile;
    load_tile<kDim, kKeys, kThreads>(tile, k, p.k.row_stride, int64_t{step} * kKeys, p.seq);
    load_tile<kDim, kKeys, kThreads>(tile + kTile, v, p.v.row_stride, int64_t{step} * kKeys, p.seq);
    copies_commit();
  };
  load_tile<kDim, kQueries, kThreads>(q_tile, q, p.q.row_stride, first, p.seq);
  load_step(first_step);

  SoftmaxRows<kDim> rows;
  uint32_t q_fragments[kDim / 16][4];
  const int64_t row = first + warp * 16 + group;
  const RowSpans spans = spans_of<kBounded>(p, row);
  for (int step = first_step; step < steps; ++step) {
    const uint32_t k_tile = kv_tiles + (step & 1) * 2 * kTile;
    copies_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load_step(step + 1);
    if (step == first_step) {
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) load_a<kDim>(q_fragments[i], q_tile, warp * 16, i);
    }
    float scores[kKeys / 8][4] = {};
    scores_of<kDim, kKeys>(scores, q_fragments, k_tile);
    const int64_t key0 = int64_t{step} * kKeys;
    if (key0 + kKeys > (p.causal ? first + 1 : none_ended) || (kBounded && key0 < all_begun))
      mask_scores<kKeys, kBounded>(scores, key0, row, p.seq, p.causal, spans);
    softmax_step<kDim, kKeys>(rows, scores, p.scale_log2);
    accumulate_rows<kDim, kKeys>(rows.out, scores, k_tile + kTile);
  }
  finish_rows<kDim>(p, rows, batch, head, row);
}

}  // namespace mbb::trainer::cuda
