// Embedding gradient, deterministic: tokens are chained by their row of the table, then warps sum each row's tokens in
// their order.
#include <climits>
#include <type_traits>

#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kWarps = 8;   // of a block
constexpr int kTokens = 2;  // on their way
// Of four columns, a lane: the old row is held beside the sum.
template <bool kFirst>
constexpr int kVectorsOf = kFirst ? 4 : 3;
constexpr unsigned kAll = 0xffffffffu;

// Four elements: a warp's vectors lie one beside the other, so that every store fills its sectors.
template <typename T>
struct Raw4 {
  using Word = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  Word word;

  __device__ __forceinline__ void load(const T* from) { word = *reinterpret_cast<const Word*>(from); }
  __device__ __forceinline__ void add_to(float (&sum)[4]) const {
    if constexpr (sizeof(T) == 4) {
      sum[0] += __uint_as_float(word.x), sum[1] += __uint_as_float(word.y);
      sum[2] += __uint_as_float(word.z), sum[3] += __uint_as_float(word.w);
    } else {
      sum[0] += __uint_as_float(word.x << 16), sum[1] += __uint_as_float(word.x & 0xffff0000u);
      sum[2] += __uint_as_float(word.y << 16), sum[3] += __uint_as_float(word.y & 0xffff0000u);
    }
  }
};

__device__ __forceinline__ void store4(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}
__device__ __forceinline__ void store4(bf16* to, const float (&from)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]));
}

// What warps work on: `parts` parts of a row, each of `width` columns.
struct Parts {
  int count, width;
};

// Tokens of a row: last[row], before[last[row]] and so on, in any order; -1 ends. Tokens of other ranks' rows are in
// none.
__global__ void chain_kernel(const int32_t* ids, int64_t first, int64_t vocab, int32_t* last, int32_t* before,
                             int64_t tokens) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= tokens) return;
  const int64_t row = ids[at] - first;
  if (row >= 0 && row < vocab) before[at] = atomicExch(last + row, static_cast<int32_t>(at));
}

// Sums of a lane's columns.
template <typename T, int kVectors>
struct Sums {
  const T* dy;  // at the lane's first column
  int cols;
  int left;  // columns behind the lane's first one
  float sum[kVectors][4] = {};

  // Adds tokens in their order; none: -1.
  __device__ __forceinline__ void add(const int (&token)[kTokens]) {
    Raw4<T> raw[kTokens][kVectors];
#pragma unroll
    for (int j = 0; j < kTokens; ++j)
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (token[j] >= 0 && u * 128 < left) raw[j][u].load(dy + int64_t{token[j]} * cols + u * 128);
#pragma unroll
    for (int j = 0; j < kTokens; ++j)
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (token[j] >= 0 && u * 128 < left) raw[j][u].add_to(sum[u]);
  }
};

// A chain of at most 32 tokens lies in a warp's lanes; false: it is longer.
__device__ __forceinline__ bool take_chain(const int32_t* before, int token, int& mine) {
  const int lane = threadIdx.x & 31;
  mine = INT_MAX;
  for (int i = 0; token >= 0; ++i) {
    if (i == 32) return false;
    if (lane == i) mine = token;
    token = before[token];
  }
  return true;
}

template <typename T, int kVectors>
__device__ __forceinline__ void add_chain(Sums<T, kVectors>& sums, int mine) {
  while (true) {
    int token[kTokens];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      const int next = __reduce_min_sync(kAll, mine);
      token[j] = next == INT_MAX ? -1 : next;
      if (mine == next) mine = INT_MAX;
    }
    if (token[0] < 0) return;
    sums.add(token);
    if (token[kTokens - 1] < 0) return;
  }
}

// Of a row that very many tokens have: all ids are looked through, kIds of them a lane at once.
template <typename T, int kVectors>
__device__ void add_found(Sums<T, kVectors>& sums, const int32_t* ids, int tokens, int id) {
  constexpr int kIds = 8;
  const int lane = threadIdx.x & 31;
  for (int base = 0; base < tokens; base += kIds * 32) {
    unsigned found[kIds];
#pragma unroll
    for (int u = 0; u < kIds; ++u) {
      const int at = base + u * 32 + lane;
      found[u] = __ballot_sync(kAll, at < tokens && ids[min(at, tokens - 1)] == id);
    }
#pragma unroll
    for (int u = 0; u < kIds; ++u)
      while (found[u] != 0) {
        int token[kTokens];
#pragma unroll
        for (int j = 0; j < kTokens; ++j) {
          token[j] = found[u] == 0 ? -1 : base + u * 32 + __ffs(static_cast<int>(found[u])) - 1;
          found[u] &= found[u] - 1;
        }
        sums.add(token);
      }
  }
}

// Parts that a warp works on, one behind the other: most of the first micro-batch's are zeros, which must not each wait
// for the load that says so.
template <bool kFirst>
constexpr int kItems = kFirst ? 4 : 1;

// A warp's parts of rows. kFirst: of every row of the table, which holds nothing yet; otherwise of the row of every
// token that is the last one of its chain.
template <bool kFirst, typename T, typename Gradient>
__global__ void __launch_bounds__(kWarps * 32, sizeof(T) == 2 ? 4 : 2)
    embedding_backward_kernel(const int32_t* ids, const int32_t* last, const int32_t* before, const T* dy,
                              Gradient* dtable, int tokens, int cols, int vocab, int first, Parts parts) {
  constexpr int kVectors = kVectorsOf<kFirst>;
  const int begin = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * kItems<kFirst>;
  const int end = min(begin + kItems<kFirst>, (kFirst ? vocab : tokens) * parts.count);
  const int lane = static_cast<int>(threadIdx.x & 31);
  int lanes_last = -1;  // of the row of the lane's part
  if (kFirst && lane < end - begin) lanes_last = last[(begin + lane) / parts.count];
  for (int item = begin; item < end; ++item) {
    const int at = item / parts.count, row = kFirst ? at : ids[at] - first;
    if (row < 0 || row >= vocab) return;
    const int token = kFirst ? __shfl_sync(kAll, lanes_last, item - begin) : last[row];
    if (!kFirst && token != at) return;
    const int column = item % parts.count * parts.width + lane * 4;
    Gradient* const to = dtable + int64_t{row} * cols + column;
    Sums<T, kVectors> sums{dy + column, cols, min(cols - column, parts.width - lane * 4)};
    Raw4<Gradient> old[kVectors];
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      if (!kFirst && u * 128 < sums.left) old[u].load(to + u * 128);
    if (int mine; take_chain(before, token, mine))
      add_chain(sums, mine);
    else
      add_found(sums, ids, tokens, row + first);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (u * 128 >= sums.left) continue;
      if (!kFirst) old[u].add_to(sums.sum[u]);
      store4(to + u * 128, sums.sum[u]);
    }
  }
}

Parts parts_of(int64_t cols, int64_t most) {
  const int64_t vectors = (cols + 127) / 128, count = (vectors + most - 1) / most;
  return {static_cast<int>(count), static_cast<int>((vectors + count - 1) / count * 128)};
}

template <bool kFirst>
Status backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch) {
  if (args.cols % 8 != 0) return fail(ErrorCode::kBadArgument, "embedding_backward: columns must be a multiple of 8");
  const Parts parts = parts_of(args.cols, kVectorsOf<kFirst>);
  const int64_t items = (kFirst ? args.vocab : args.tokens) * parts.count, each = kWarps * kItems<kFirst>;
  if (items == 0) return {};
  auto* const last = static_cast<int32_t*>(workspace);
  auto* const before = last + args.vocab;
  MB_TRY(ok(cudaMemsetAsync(last, 0xff, static_cast<size_t>(args.vocab) * 4, launch.stream),
            "clearing the chains of the embedding gradient"));
  if (args.tokens > 0)
    chain_kernel<<<static_cast<unsigned>((args.tokens + 127) / 128), 128, 0, launch.stream>>>(
        args.ids, args.first, args.vocab, last, before, args.tokens);
  const auto start = [&]<typename T, typename Gradient>(T, Gradient) {
    embedding_backward_kernel<kFirst, T, Gradient>
        <<<static_cast<unsigned>((items + each - 1) / each), kWarps * 32, 0, launch.stream>>>(
            args.ids, last, before, static_cast<const T*>(dy), static_cast<Gradient*>(dtable),
            static_cast<int>(args.tokens), static_cast<int>(args.cols), static_cast<int>(args.vocab),
            static_cast<int>(args.first), parts);
  };
  if (args.element == Element::kF32)
    start(float{}, float{});
  else if (args.gradient == Element::kF32)
    start(bf16{}, float{});
  else
    start(bf16{}, bf16{});
  return launched("embedding_backward");
}

}  // namespace

int64_t embedding_workspace(int64_t entries) {
  return entries * 4;
}

Status embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch) {
  return backward<false>(args, dy, dtable, workspace, launch);
}

Status first_embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace,
                                const Launch& launch) {
  return backward<true>(args, dy, dtable, workspace, launch);
}

}  // namespace mbb::trainer::cuda
