// Cross entropy kernels: one block a row of logits, whose second pass finds part of the row in L2.
// kWidth is how many logits a thread reads at once: 8, or 1 where rows are not 16-byte vectors.
#pragma once

#include "trainer/ops/cuda/by_width.cuh"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/wgmma.cuh"

namespace mbb::trainer::cuda {

template <typename T>
struct CrossEntropyParams {
  const T* logits;
  T* gradient;  // may be the logits themselves
  const int32_t* targets;
  int64_t vocab, first, real;  // `real` columns of this slice count, the rest is padding
};

// A running maximum with the sum of exponentials relative to it.
struct SoftmaxSum {
  float max = -INFINITY;
  float sum = 0.0f;
};

template <int kWidth, typename T>
__device__ __forceinline__ void load_logits(const T* row, int64_t column, int64_t real, float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    load8(row + column, x);
    if (column + 8 > real) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + i >= real) x[i] = -INFINITY;
    }
  } else {
    x[0] = column < real ? to_float(row[column]) : -INFINITY;
  }
}

// Calls with the logits of a thread, kWidth at a time; of wide ones four times as many are on their way.
template <int kWidth, typename T, typename Call>
__device__ __forceinline__ void over_logits(const CrossEntropyParams<T>& p, const T* row, Call&& call) {
  constexpr int kInFlight = kWidth == 8 ? 4 : 1;
  const int vocab = static_cast<int>(p.vocab), real = static_cast<int>(p.real);
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int first = static_cast<int>(threadIdx.x) * kWidth; first < vocab; first += kInFlight * step) {
    RawValues<kWidth, T> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) raw[u].load(row + min(first + u * step, vocab - kWidth));
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int column = first + u * step;
      if (column >= vocab) break;
      float x[kWidth];
      raw[u].unpack(x);
      if (column + kWidth > real) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (column + i >= real) x[i] = -INFINITY;
      }
      call(x);
    }
  }
}

template <int kWidth, typename T>
__device__ SoftmaxSum row_softmax_sum(const T* row, int64_t vocab, int64_t real, float* scratch) {
  SoftmaxSum mine;
  for (int64_t column = threadIdx.x * kWidth; column < vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, real, x);
    float top = x[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) top = fmaxf(top, x[i]);
    if (top == -INFINITY) continue;
    if (top > mine.max) {
      mine.sum *= __expf(mine.max - top);
      mine.max = top;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) mine.sum += __expf(x[i] - mine.max);
  }
  const float top = block_max(mine.max, scratch);
  const float sum = block_sum(mine.max == -INFINITY ? 0.0f : mine.sum * __expf(mine.max - top), scratch);
  return {top, sum};
}

// (softmax - onehot) * weight; a weight of 0 (no target) gives exact zeros.
template <int kWidth, typename T>
__device__ void write_gradient(const T* row, T* to, int64_t vocab, int64_t real, int64_t target, float max,
                               float inverse_sum, float weight) {
  for (int64_t column = threadIdx.x * kWidth; column < vocab; column += blockDim.x * kWidth) {
    float x[kWidth];
    load_logits<kWidth>(row, column, real, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      x[i] = weight == 0.0f ? 0.0f : (__expf(x[i] - max) * inverse_sum - (column + i == target ? 1.0f : 0.0f)) * weight;
    if constexpr (kWidth == 8)
      store8(to + column, x);
    else
      to[column] = from_float<T>(x[0]);
  }
}

inline constexpr int kOnePassThreads = 256;  // they have more than one vector each on their way
template <int kWidth, typename T>
__global__ void __launch_bounds__(kOnePassThreads) ce_row_max_kernel(CrossEntropyParams<T> p, float* max) {
  __shared__ float scratch[32];
  const T* row = p.logits + int64_t{blockIdx.x} * p.vocab;
  float top = -INFINITY;
  over_logits<kWidth>(p, row, [&](const float(&x)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) top = fmaxf(top, x[i]);
  });
  top = block_max(top, scratch);
  if (threadIdx.x == 0) max[blockIdx.x] = top;
}

// target_logit: relative to the maximum; 0 where the target is another rank's or none.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kOnePassThreads)
    ce_sum_exp_kernel(CrossEntropyParams<T> p, const float* max, float* sum_exp, float* target_logit) {
  __shared__ float scratch[32];
  const T* row = p.logits + int64_t{blockIdx.x} * p.vocab;
  const float top = max[blockIdx.x];
  float sum = 0.0f;
  over_logits<kWidth>(p, row, [&](const float(&x)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += __expf(x[i] - top);
  });
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  const int64_t target = p.targets[blockIdx.x] - p.first;
  const bool mine = p.targets[blockIdx.x] >= 0 && target >= 0 && target < p.real;
  sum_exp[blockIdx.x] = sum;
  target_logit[blockIdx.x] = mine ? to_float(row[target]) - top : 0.0f;
}

template <int kWidth, typename T>
__global__ void ce_gradient_kernel(CrossEntropyParams<T> p, const float* max, const float* sum_exp) {
  const int64_t row = int64_t{blockIdx.x} * p.vocab;
  const int32_t id = p.targets[blockIdx.x];
  write_gradient<kWidth>(p.logits + row, p.gradient + row, p.vocab, p.real, id < 0 ? -1 : id - p.first, max[blockIdx.x],
                         1.0f / sum_exp[blockIdx.x], id < 0 ? 0.0f : 1.0f);
}

template <int kWidth, typename T>
__global__ void ce_fused_kernel(CrossEntropyParams<T> p, float* sum_exp, float* target) {
  __shared__ float scratch[32];
  const int64_t row = int64_t{blockIdx.x} * p.vocab;
  const int32_t id = p.targets[blockIdx.x];
  const float target_logit = id >= 0 ? to_float(p.logits[row + id]) : 0.0f;
  const SoftmaxSum s = row_softmax_sum<kWidth>(p.logits + row, p.vocab, p.real, scratch);
  if (threadIdx.x == 0) {
    sum_exp[blockIdx.x] = s.sum;
    target[blockIdx.x] = id < 0 ? 0.0f : target_logit - s.max;
  }
  __syncthreads();  // every thread has read the target's logit before its gradient overwrites it
  write_gradient<kWidth>(p.logits + row, p.gradient + row, p.vocab, p.real, id, s.max, 1.0f / s.sum,
                         id < 0 ? 0.0f : 1.0f);
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a cluster of blocks needs: its place, and a barrier in two halves.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return static_cast<int>(size);
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Eight logits as they lie in memory, those from `real` on -inf.
__device__ __forceinline__ uint4 real_logits(uint4 raw, int at, int real) {
  if (at * 8 + 8 <= real) return raw;
  uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at * 8 + i >= real)
      words[i / 2] = i % 2 != 0 ? (words[i / 2] & 0xffffu) | 0xff800000u : (words[i / 2] & 0xffff0000u) | 0xff80u;
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A block's part of a row in shared memory: `count` vectors from the one that holds logit `first`, of which `real`
// logits count, copied in pieces of `piece` vectors, as many for every thread.
constexpr int kMostParts = 8, kPieces = 4;
constexpr float kLog2e = 1.4426950408889634f;
struct HeldPart {
  uint4* held;
  uint64_t* arrived;  // [kPieces]
  int first, count, real, piece;
};

// By one thread.
__device__ __forceinline__ void start_piece(const HeldPart& part, int i, const bf16* from) {
  const int at = i * part.piece, bytes = max(min(part.piece, part.count - at), 0) * 16;
  const uint32_t barrier = shared_address(part.arrived + i);
  barrier_expect(barrier, static_cast<uint32_t>(bytes));
  if (bytes == 0) return;
  copy_run(shared_address(part.held + at), from + int64_t{at} * 8, static_cast<uint32_t>(bytes), barrier);
}

template <int kVectors>
__device__ __forceinline__ void add_logits(SoftmaxSum& sum, const uint4 (&raw)[kVectors]) {
  float x[kVectors][8], high = -INFINITY;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    load8(reinterpret_cast<const bf16*>(&raw[v]), x[v]);
#pragma unroll
    for (int e = 0; e < 8; ++e) high = fmaxf(high, x[v][e]);
  }
  if (high > sum.max) {
    sum.sum *= exp2_fast((sum.max - high) * kLog2e);
    sum.max = high;
  }
  if (sum.max == -INFINITY) return;
  const float shift = sum.max * kLog2e;
  float some[2] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int e = 0; e < 8; ++e) some[e & 1] += exp2_fast(fmaf(x[v][e], kLog2e, -shift));
  sum.sum += some[0] + some[1];
}

// A thread's sum of the part, pieces as they arrive; turn: of the barriers' phase.
__device__ __forceinline__ SoftmaxSum held_softmax_sum(const HeldPart& part, uint32_t turn) {
  const int threads = static_cast<int>(blockDim.x);
  const auto logits = [&](int at) { return real_logits(part.held[at], at, part.real); };
  SoftmaxSum mine;
  for (int i = 0; i < kPieces; ++i) {
    barrier_wait(shared_address(part.arrived + i), turn);
    const int end = min((i + 1) * part.piece, part.count);
    int at = i * part.piece + static_cast<int>(threadIdx.x);
    for (; at + threads < end; at += 2 * threads) add_logits<2>(mine, {logits(at), logits(at + threads)});
    if (at < end) add_logits<1>(mine, {logits(at)});
  }
  return mine;
}

__device__ __forceinline__ SoftmaxSum both_sums(SoftmaxSum a, SoftmaxSum b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {};
  return {max, a.sum * exp2_fast((a.max - max) * kLog2e) + b.sum * exp2_fast((b.max - max) * kLog2e)};
}
__device__ __forceinline__ SoftmaxSum warp_softmax_sum(SoftmaxSum x) {
  const float max = warp_max(x.max);
  return {max, warp_sum(x.max == -INFINITY ? 0.0f : x.sum * exp2_fast((x.max - max) * kLog2e))};
}

// What the warps of a row's blocks tell each other: maximum and sum relative to it, rows in turn. A barrier of the
// whole cluster would wait, each row, until the gradient of the row before is in memory.
struct Told {
  float2* pairs;   // [2][size][warps]
  uint64_t* told;  // [2]
  int rank, size, warps;
};
// A warp's sum goes to every block of the cluster, whose barrier counts its bytes.
__device__ __forceinline__ void tell_parts(SoftmaxSum mine, const Told& t, float2* pairs, uint32_t told, int lane,
                                           int warp) {
  if (lane >= t.size) return;
  uint32_t to, barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(to)
               : "r"(shared_address(pairs + t.rank * t.warps + warp)), "r"(lane));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(told), "r"(lane));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(mine.max), "f"(mine.sum), "r"(barrier)
               : "memory");
}
// Of the row, from the sums of its parts' threads.
__device__ __forceinline__ SoftmaxSum row_of_parts(SoftmaxSum mine, const Told& t, int row) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x / 32);
  const int all_warps = t.size * t.warps;
  float2* const pairs = t.pairs + (row & 1) * all_warps;
  const uint32_t told = shared_address(t.told + (row & 1));
  mine = warp_softmax_sum(mine);
  if (t.size == 1) {  // the memory of a cluster takes two blocks or more
    if (lane == 0) pairs[warp] = {mine.max, mine.sum};
    __syncthreads();
  } else {
    if (threadIdx.x == 0) barrier_expect(told, static_cast<uint32_t>(all_warps * 8));
    tell_parts(mine, t, pairs, told, lane, warp);
    barrier_wait(told, row >> 1 & 1);
  }
  SoftmaxSum all;
  for (int i = lane; i < all_warps; i += 32) all = both_sums(all, {pairs[i].x, pairs[i].y});
  return warp_softmax_sum(all);
}

// The part's gradient for target `id` of the row. Where a piece has been read, its like of the `next` row follows.
__device__ __forceinline__ void write_held_gradient(const HeldPart& part, SoftmaxSum row, int32_t id, uint4* to,
                                                    const bf16* next) {
  const float offset = -fmaf(row.max, kLog2e, log2f(row.sum));
  const int own = id - part.first;
  for (int i = 0; i < kPieces; ++i) {
    const int end = min((i + 1) * part.piece, part.count);
#pragma unroll 2
    for (int at = i * part.piece + static_cast<int>(threadIdx.x); at < end; at += static_cast<int>(blockDim.x)) {
      const uint4 raw = real_logits(part.held[at], at, part.real);
      float x[8];
      load8(reinterpret_cast<const bf16*>(&raw), x);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = exp2_fast(fmaf(x[e], kLog2e, offset));
      if (own >= at * 8 && own < at * 8 + 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] -= at * 8 + e == own ? 1.0f : 0.0f;
      }
      uint4 line;
      store8(reinterpret_cast<bf16*>(&line), x);
      __stcs(to + at, id < 0 ? uint4{} : line);
    }
    if (next == nullptr) continue;
    __syncthreads();
    if (threadIdx.x == 0) start_piece(part, i, next);
  }
}

// As ce_fused_kernel for bf16 rows of 16-byte vectors: a cluster of at most kMostParts blocks keeps a row in shared
// memory, `vectors_a_part` each, so that device memory is read once. It takes kRowsOfCluster rows, and the next one
// arrives while the gradient of the one before is written.
constexpr int kRowsOfCluster = 3;
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 3)
    ce_fused_held_kernel(CrossEntropyParams<bf16> p, int64_t rows, int vectors_a_part, float* sum_exp, float* target) {
  extern __shared__ __align__(128) uint4 held[];  // alone at a line's begin, where the copy engine is fastest
  const int rank = cluster_rank(), size = cluster_size(), vectors = static_cast<int>(p.vocab / 8);
  const int begin = min(rank * vectors_a_part, vectors), first = begin * 8;
  constexpr int kWarps = kThreads / 32;
  auto* const pairs = reinterpret_cast<float2*>(held + vectors_a_part);
  auto* const arrived = reinterpret_cast<uint64_t*>(pairs + 2 * size * kWarps);
  uint64_t* const told = arrived + kPieces;
  const HeldPart part{held,
                      arrived,
                      first,
                      min(vectors_a_part, vectors - begin),
                      static_cast<int>(p.real) - first,
                      ((vectors_a_part + kPieces - 1) / kPieces + kThreads - 1) / kThreads * kThreads};
  const Told others{pairs, told, rank, size, kWarps};
  const int64_t first_row = int64_t{blockIdx.x / static_cast<unsigned>(size)} * kRowsOfCluster;
  const int here = static_cast<int>(min(rows - first_row, int64_t{kRowsOfCluster}));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPieces; ++i) barrier_init(shared_address(arrived + i), 1);
    for (int i = 0; i < 2; ++i) barrier_init(shared_address(told + i), 1);
    barriers_ready();
    for (int i = 0; i < kPieces; ++i) start_piece(part, i, p.logits + first_row * p.vocab + first);
  }
  __syncthreads();
  cluster_arrive();
  for (int r = 0; r < here; ++r) {
    const int64_t row = first_row + r, at = row * p.vocab + first;
    const int32_t id = p.targets[row];
    const SoftmaxSum mine = held_softmax_sum(part, r & 1);
    if (r == 0) cluster_wait();  // the row's blocks are all there before one writes into another's memory
    const SoftmaxSum of_row = row_of_parts(mine, others, r);
    if (threadIdx.x == 0) {
      const int own = id - first;
      if (rank == 0) sum_exp[row] = of_row.sum;
      if (id < 0 && rank == 0) target[row] = 0.0f;
      if (id >= 0 && own >= 0 && own < part.count * 8)
        target[row] = to_float(reinterpret_cast<const bf16*>(held)[own]) - of_row.max;
    }
    write_held_gradient(part, of_row, id, reinterpret_cast<uint4*>(p.gradient + at),
                        r + 1 < here ? p.logits + at + p.vocab : nullptr);
  }
}

// One block: total[0] (+)= sum of log(sum_exp) - target, total[1] (+)= rows with a target, in doubles and a fixed
// order.
__global__ void ce_loss_kernel(const float* sum_exp, const float* target_logit, const int32_t* targets, int64_t rows,
                               double* total, bool accumulate) {
  __shared__ double losses[256], counts[256];
  double loss = 0.0, count = 0.0;
  for (int64_t r = threadIdx.x; r < rows; r += 256) {
    if (targets[r] < 0) continue;
    loss += log(static_cast<double>(sum_exp[r])) - static_cast<double>(target_logit[r]);
    count += 1.0;
  }
  losses[threadIdx.x] = loss;
  counts[threadIdx.x] = count;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x != 0) return;
  total[0] = accumulate ? total[0] + losses[0] : losses[0];
  total[1] = accumulate ? total[1] + counts[0] : counts[0];
}

}  // namespace mbb::trainer::cuda
