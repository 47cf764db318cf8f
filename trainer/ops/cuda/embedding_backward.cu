// Embedding gradient, deterministic: tokens are chained by their row of the table, then warps sum each row's tokens in
// their order. The three kernels start one before the other ends.
#include <algorithm>
#include <climits>
#include <type_traits>

#include "trainer/ops/cuda/early_launch.cuh"
#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kWarps = 8;    // of a block
constexpr int kTokens = 2;   // on their way
constexpr int kVectors = 3;  // of four columns, a lane
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
  __stcs(reinterpret_cast<float4*>(to), make_float4(from[0], from[1], from[2], from[3]));
}
__device__ __forceinline__ void store4(bf16* to, const float (&from)[4]) {
  __stcs(reinterpret_cast<uint2*>(to), make_uint2(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3])));
}

// What warps work on: `parts` parts of a row, each of `width` columns.
struct Parts {
  int count, width;
};

__global__ void clear_kernel(int32_t* last, int64_t vocab) {
  launch_dependents();
  int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (at + 4 <= vocab)
    *reinterpret_cast<int4*>(last + at) = make_int4(-1, -1, -1, -1);
  else
    for (; at < vocab; ++at) last[at] = -1;
}

// Tokens of a row: last[row], before[last[row]] and so on, in any order; -1 ends. Tokens of other ranks' rows are in
// none.
__global__ void chain_kernel(const int32_t* ids, int64_t first, int64_t vocab, int32_t* last, int32_t* before,
                             int64_t tokens) {
  launch_dependents();
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = at < tokens ? ids[at] - first : -1;
  wait_for_launch_before();
  if (row >= 0 && row < vocab) before[at] = atomicExch(last + row, static_cast<int32_t>(at));
}

// Sums of a lane's columns.
template <typename T>
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

template <typename T>
__device__ __forceinline__ void add_chain(Sums<T>& sums, int mine) {
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
template <typename T>
__device__ void add_found(Sums<T>& sums, const int32_t* ids, int tokens, int id) {
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

// A row of the table as a lane has looked it up. kFew: one token or two in their order (the second -1: one).
enum class Kind { kNone, kEmpty, kFew, kMany };
struct Row {
  int at = 0;
  Kind kind = Kind::kNone;
  int last = -1, tokens[2] = {-1, -1};

  __device__ __forceinline__ void take(int token, int second, const int32_t* before) {
    kind = second >= 0 && before[second] >= 0 ? Kind::kMany : Kind::kFew;
    last = token;
    tokens[0] = second >= 0 ? min(token, second) : token, tokens[1] = second >= 0 ? max(token, second) : -1;
  }
};
// Lanes look up a warp's rows at once.
constexpr int kRows = 4;

// Of every row of the table, which holds nothing yet (kFirst); otherwise of the row of every token that is the last one
// of its chain.
template <bool kFirst, typename T, typename Gradient>
struct Table {
  const int32_t *ids, *last, *before;
  const T* dy;
  Gradient* dtable;
  int tokens, cols, vocab, first;
  int left;  // columns behind the lane's first one, at which dy and dtable are

  __device__ __forceinline__ Row look_up(int at) const {
    Row row;
    if (kFirst) {
      row.at = at, row.kind = Kind::kEmpty;
      if (const int token = last[at]; token >= 0) row.take(token, before[token], before);
    } else {
      row.at = ids[at] - first;
      if (row.at < 0 || row.at >= vocab) return row;
      const int second = before[at];  // on its way beside last
      if (last[row.at] == at) row.take(at, second, before);
    }
    return row;
  }

  __device__ __forceinline__ void clear(int row) const {
    const float none[4] = {};
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      if (u * 128 < left) store4(dtable + int64_t{row} * cols + u * 128, none);
  }

  __device__ __forceinline__ void write_many(int row, int token) const {
    Gradient* const to = dtable + int64_t{row} * cols;
    Raw4<Gradient> old[kVectors];
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      if (!kFirst && u * 128 < left) old[u].load(to + u * 128);
    Sums<T> sums{dy, cols, left};
    if (int mine; take_chain(before, token, mine))
      add_chain(sums, mine);
    else
      add_found(sums, ids, tokens, row + first);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (u * 128 >= left) continue;
      if (!kFirst) old[u].add_to(sums.sum[u]);
      store4(to + u * 128, sums.sum[u]);
    }
  }
};

// The part of a row with one token or two, on its way.
template <bool kFirst, typename T, typename Gradient>
struct FewTokens {
  int row = -1, tokens[2] = {-1, -1};
  Raw4<Gradient> old[kVectors];
  Raw4<T> one[kVectors], two[kVectors];

  // Of the first of `lanes`, which it leaves; none: nothing.
  __device__ __forceinline__ void load(const Table<kFirst, T, Gradient>& t, const Row& of_lane, unsigned& lanes) {
    row = -1;
    if (lanes == 0) return;
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    lanes &= lanes - 1;
    row = __shfl_sync(kAll, of_lane.at, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j) tokens[j] = __shfl_sync(kAll, of_lane.tokens[j], lane);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (u * 128 >= t.left) continue;
      if (!kFirst) old[u].load(t.dtable + int64_t{row} * t.cols + u * 128);
      one[u].load(t.dy + int64_t{tokens[0]} * t.cols + u * 128);
      if (tokens[1] >= 0) two[u].load(t.dy + int64_t{tokens[1]} * t.cols + u * 128);
    }
  }
  __device__ __forceinline__ void write(const Table<kFirst, T, Gradient>& t) const {
    if (row < 0) return;
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (u * 128 >= t.left) continue;
      float sum[4] = {};
      one[u].add_to(sum);
      if (tokens[1] >= 0) two[u].add_to(sum);
      if (!kFirst) old[u].add_to(sum);
      store4(t.dtable + int64_t{row} * t.cols + u * 128, sum);
    }
  }
};

// Rows that lanes have looked up: those of few tokens are on their way, two at once where there is no old value, while
// those without tokens are cleared.
template <bool kFirst, typename T, typename Gradient>
__device__ __forceinline__ void write_rows(const Table<kFirst, T, Gradient>& t, const Row& row) {
  constexpr int kTogether = kFirst ? 2 : 1;
  unsigned few = __ballot_sync(kAll, row.kind == Kind::kFew), empty = __ballot_sync(kAll, row.kind == Kind::kEmpty);
  unsigned many = __ballot_sync(kAll, row.kind == Kind::kMany);
  const auto next = [](unsigned& lanes) {
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    lanes &= lanes - 1;
    return lane;
  };
  do {
    FewTokens<kFirst, T, Gradient> parts[kTogether];
#pragma unroll
    for (auto& part : parts) part.load(t, row, few);
    while (empty != 0) t.clear(__shfl_sync(kAll, row.at, next(empty)));
#pragma unroll
    for (const auto& part : parts) part.write(t);
  } while (few != 0);
  while (many != 0) {
    const int lane = next(many);
    t.write_many(__shfl_sync(kAll, row.at, lane), __shfl_sync(kAll, row.last, lane));
  }
}

// A warp's parts of kRows rows, or of the rows of kRows tokens.
template <bool kFirst, typename T, typename Gradient>
__global__ void __launch_bounds__(kWarps * 32, sizeof(T) == 2 ? 4 : 2)
    embedding_backward_kernel(Table<kFirst, T, Gradient> t, Parts parts) {
  const int item = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), group = item / parts.count;
  const int lane = static_cast<int>(threadIdx.x & 31), begin = group * kRows;
  const int end = min(begin + kRows, kFirst ? t.vocab : t.tokens);
  if (begin >= end) return;
  const int column = (item - group * parts.count) * parts.width + lane * 4;
  t.dy += column, t.dtable += column, t.left = min(t.cols - column, parts.width - lane * 4);
  wait_for_launch_before();
  Row row;
  if (lane < end - begin) row = t.look_up(begin + lane);
  write_rows(t, row);
}

Parts parts_of(int64_t cols) {
  const int64_t vectors = (cols + 127) / 128, count = (vectors + kVectors - 1) / kVectors;
  return {static_cast<int>(count), static_cast<int>((vectors + count - 1) / count * 128)};
}

template <bool kFirst>
Status backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch) {
  if (args.cols % 8 != 0) return fail(ErrorCode::kBadArgument, "embedding_backward: columns must be a multiple of 8");
  const Parts parts = parts_of(args.cols);
  const int64_t groups = ((kFirst ? args.vocab : args.tokens) + kRows - 1) / kRows, items = groups * parts.count;
  if (items == 0) return {};
  auto* const last = static_cast<int32_t*>(workspace);
  auto* const before = last + args.vocab;
  clear_kernel<<<static_cast<unsigned>((args.vocab + 1023) / 1024), 256, 0, launch.stream>>>(last, args.vocab);
  MB_TRY(launched("embedding_backward"));
  MB_TRY(start_early("embedding_backward", chain_kernel,
                     dim3(static_cast<unsigned>(std::max<int64_t>((args.tokens + 127) / 128, 1))), 128, launch.stream,
                     args.ids, args.first, args.vocab, last, before, args.tokens));
  const auto start = [&]<typename T, typename Gradient>(T, Gradient) {
    const Table<kFirst, T, Gradient> table{args.ids,
                                           last,
                                           before,
                                           static_cast<const T*>(dy),
                                           static_cast<Gradient*>(dtable),
                                           static_cast<int>(args.tokens),
                                           static_cast<int>(args.cols),
                                           static_cast<int>(args.vocab),
                                           static_cast<int>(args.first),
                                           0};
    return start_early("embedding_backward", embedding_backward_kernel<kFirst, T, Gradient>,
                       dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), kWarps * 32, launch.stream, table,
                       parts);
  };
  if (args.element == Element::kF32) return start(float{}, float{});
  return args.gradient == Element::kF32 ? start(bf16{}, float{}) : start(bf16{}, bf16{});
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
