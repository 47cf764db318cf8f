// Embedding gradient, deterministic: positions are sorted by their row of the table, then one block sums each row's
// tokens in their order.
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>

#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kOwned = 32;  // rows of the table that a block clears where no token has them

// Of `kOwned` rows those that no token has become zero.
template <typename Gradient>
__device__ void clear_untouched(const int32_t* rows, Gradient* dtable, int64_t tokens, int64_t cols, int64_t vocab) {
  __shared__ unsigned touched;
  const int64_t first = int64_t{blockIdx.x} * kOwned, end = min(first + kOwned, vocab);
  int64_t begin = 0;  // of the tokens of the first row or a later one
  for (int64_t last = tokens; begin < last;) {
    const int64_t middle = (begin + last) / 2;
    if (rows[middle] < first)
      begin = middle + 1;
    else
      last = middle;
  }
  if (threadIdx.x == 0) touched = 0;
  __syncthreads();
  for (int64_t at = begin + threadIdx.x; at < tokens && rows[at] < end; at += blockDim.x)
    atomicOr(&touched, 1u << (rows[at] - first));
  __syncthreads();
  const float zeros[8] = {};
  for (int64_t row = first; row < end; ++row) {
    if ((touched >> (row - first) & 1u) != 0) continue;
    for (int64_t column = int64_t{threadIdx.x} * 8; column < cols; column += int64_t{blockDim.x} * 8)
      store8(dtable + row * cols + column, zeros);
  }
}

// A block a sorted position; only the first of each row works, over the whole run of that row. The first `clearing`
// blocks clear rows instead, and what is summed is not added to what was there. kHeld vectors of kTokens tokens are on
// their way.
template <typename T, typename Gradient>
__global__ void __launch_bounds__(256)
    embedding_backward_kernel(const int32_t* rows, const int32_t* positions, const T* dy, Gradient* dtable,
                              int64_t tokens, int64_t cols, int64_t vocab, unsigned clearing) {
  constexpr int kHeld = 2, kTokens = 2;
  if (blockIdx.x < clearing) return clear_untouched(rows, dtable, tokens, cols, vocab);
  const int64_t start = blockIdx.x - clearing, step = int64_t{blockDim.x} * 8;
  const int64_t row = rows[start], before = start > 0 ? rows[start - 1] : -1;
  if (row == before || row >= vocab) return;
  for (int64_t column = int64_t{threadIdx.x} * 8; column < cols; column += kHeld * step) {
    float sum[kHeld][8] = {};
    Raw8<Gradient> old[kHeld];
    if (clearing == 0) {
#pragma unroll
      for (int u = 0; u < kHeld; ++u)
        if (column + u * step < cols) old[u].load(dtable + row * cols + column + u * step);
    }
    bool more = true;
    for (int64_t at = start; more; at += kTokens) {
      int64_t from[kTokens];
      Raw8<T> raw[kTokens][kHeld];
#pragma unroll
      for (int j = 0; j < kTokens; ++j) {
        const int64_t next = min(at + j, tokens - 1);
        more = at + j < tokens && rows[next] == row;
        from[j] = more ? positions[next] : -1;
      }
#pragma unroll
      for (int j = 0; j < kTokens; ++j)
#pragma unroll
        for (int u = 0; u < kHeld; ++u)
          if (from[j] >= 0 && column + u * step < cols) raw[j][u].load(dy + from[j] * cols + column + u * step);
#pragma unroll
      for (int j = 0; j < kTokens; ++j)
#pragma unroll
        for (int u = 0; u < kHeld; ++u) {
          if (from[j] < 0 || column + u * step >= cols) continue;
          float values[8];
          raw[j][u].unpack(values);
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[u][i] += values[i];
        }
    }
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (column + u * step >= cols) continue;
      if (clearing == 0) {
        float values[8];
        old[u].unpack(values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[u][i] += values[i];
      }
      store8(dtable + row * cols + column + u * step, sum[u]);
    }
  }
}

// Tokens of other ranks' rows come behind the table's last one.
__global__ void table_rows_kernel(const int32_t* ids, int64_t first, int64_t vocab, int32_t* rows, int32_t* positions,
                                  int64_t tokens) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= tokens) return;
  const int64_t row = ids[at] - first;
  rows[at] = static_cast<int32_t>(row < 0 || row > vocab ? vocab : row);
  positions[at] = static_cast<int32_t>(at);
}

size_t sort_bytes(int64_t tokens) {
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                  static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                  static_cast<int>(tokens));
  return bytes;
}

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Status backward(const Embedding& args, bool accumulate, const void* dy, void* dtable, void* workspace,
                const Launch& launch) {
  if (args.cols % 8 != 0) return fail(ErrorCode::kBadArgument, "embedding_backward: columns must be a multiple of 8");
  if (args.tokens == 0 && accumulate) return {};
  auto* bytes = static_cast<unsigned char*>(workspace);
  const int64_t list = aligned(args.tokens * 4);
  const auto part = [&](int64_t i) { return reinterpret_cast<int32_t*>(bytes + i * list); };
  int32_t *const unsorted = part(0), *const order = part(1), *const rows = part(2), *const positions = part(3);
  if (args.tokens > 0) {
    size_t temporary = sort_bytes(args.tokens);
    table_rows_kernel<<<static_cast<unsigned>((args.tokens + 255) / 256), 256, 0, launch.stream>>>(
        args.ids, args.first, args.vocab, unsorted, order, args.tokens);
    // Only the bits that rows have: each eight of them are a pass.
    const int bits = std::bit_width(static_cast<uint64_t>(args.vocab));
    MB_TRY(ok(cub::DeviceRadixSort::SortPairs(bytes + 4 * list, temporary, unsorted, rows, order, positions,
                                              static_cast<int>(args.tokens), 0, bits, launch.stream),
              "sorting tokens for the embedding gradient"));
  }
  const auto clearing = static_cast<unsigned>(accumulate ? 0 : (args.vocab + kOwned - 1) / kOwned);
  const unsigned grid = clearing + static_cast<unsigned>(args.tokens);
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>((args.cols / 8 + 63) / 64 * 32, 32, 256));
  const auto start = [&]<typename T, typename Gradient>(T, Gradient) {
    embedding_backward_kernel<T, Gradient><<<grid, threads, 0, launch.stream>>>(
        rows, positions, static_cast<const T*>(dy), static_cast<Gradient*>(dtable), args.tokens, args.cols, args.vocab,
        clearing);
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

int64_t embedding_workspace(int64_t tokens) {
  return 4 * aligned(tokens * 4) + aligned(static_cast<int64_t>(sort_bytes(tokens)));
}

Status embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch) {
  return backward(args, true, dy, dtable, workspace, launch);
}

Status first_embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace,
                                const Launch& launch) {
  return backward(args, false, dy, dtable, workspace, launch);
}

}  // namespace mbb::trainer::cuda
