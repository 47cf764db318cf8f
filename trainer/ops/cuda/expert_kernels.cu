// Dispatch, permutation and grouped bias of experts.
#include "trainer/ops/cuda/expert_kernels.h"

#include <algorithm>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/by_width.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kScan = 1024;

// Threads of a kScan block with `mine` set, before this one and in all.
struct Rank {
  int before, total;
};
__device__ Rank block_rank(bool mine, int* warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const unsigned votes = __ballot_sync(0xffffffffu, mine);
  __syncthreads();
  if (lane == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1u << lane) - 1)), total = 0;
  for (int w = 0; w < kScan / 32; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return {before, total};
}

__global__ void __launch_bounds__(kScan) dispatch_count_kernel(const int32_t* experts, int64_t pairs, int32_t* counts) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < pairs; i += kScan) mine += experts[i] == static_cast<int>(blockIdx.x) ? 1 : 0;
  atomicAdd(&total, mine);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// An expert's pairs in order: list[first ..), with first = pairs of the experts before it.
__global__ void __launch_bounds__(kScan)
    dispatch_list_kernel(const int32_t* experts, int64_t pairs, const int32_t* counts, int32_t* list) {
  __shared__ int warps[kScan / 32];
  __shared__ int64_t first;
  const int expert = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    first = 0;
    for (int e = 0; e < expert; ++e) first += counts[e];
  }
  __syncthreads();
  int64_t at = first;
  for (int64_t base = 0; base < pairs; base += kScan) {
    const int64_t i = base + threadIdx.x;
    const bool mine = i < pairs && experts[i] == expert;
    const Rank rank = block_rank(mine, warps);
    if (mine) list[at + rank.before] = static_cast<int32_t>(i);
    at += rank.total;
  }
}

// Rows of an expert's kept pairs, in pair order. With a capacity a pair is kept while fewer than `capacity` pairs of
// its expert are before it, by weight (of equal ones the earlier) or by position.
__global__ void __launch_bounds__(kScan)
    dispatch_rows_kernel(DispatchAttrs a, const float* weights, const int32_t* counts, const int32_t* list,
                         int32_t* rows, int32_t* segments, Alarm alarm) {
  __shared__ int warps[kScan / 32];
  __shared__ int64_t first, inside;  // pairs of the experts before: of all, and of the same peer
  const auto expert = static_cast<int64_t>(blockIdx.x);
  const int64_t owned = a.experts / a.peers, peer = expert / owned, slot = a.rows / a.peers;
  if (threadIdx.x == 0) {
    first = inside = 0;
    for (int64_t e = 0; e < expert; ++e) {
      first += counts[e];
      if (e >= peer * owned) inside += counts[e];
    }
  }
  __syncthreads();
  const int32_t* mine = list + first;
  const int count = counts[expert];
  const int64_t base_row = a.capacity > 0 ? expert * a.capacity : peer * slot + inside;
  // Without a capacity: what the peer's slot has left.
  const int64_t room = a.capacity > 0 ? count : max(int64_t{0}, slot - inside);
  if (threadIdx.x == 0 && count > room && alarm.flag != nullptr) {
    const int before = atomicCAS(alarm.flag, 0, alarm.op);
    if (before == 0 || before == alarm.op) atomicMax(alarm.flag + 1, static_cast<int>(inside + count));
  }
  int64_t next = base_row;
  for (int base = 0; base < count; base += kScan) {
    const int i = base + static_cast<int>(threadIdx.x);
    bool keep = i < count && i < room;
    if (i < count && !keep) rows[mine[i]] = -1;
    if (keep && a.capacity > 0 && count > a.capacity) {
      int before = i;
      if (!a.by_position) {
        const float weight = weights[mine[i]];
        before = 0;
        for (int j = 0; j < count; ++j) {
          const float other = weights[mine[j]];
          before += other > weight || (other == weight && j < i) ? 1 : 0;
        }
      }
      keep = before < a.capacity;
      if (!keep) rows[mine[i]] = -1;
    }
    const Rank rank = block_rank(keep, warps);
    if (keep) rows[mine[i]] = static_cast<int32_t>(next + rank.before);
    next += rank.total;
  }
  if (threadIdx.x == 0) {
    segments[expert] = static_cast<int32_t>(base_row);
    segments[a.experts + expert] = static_cast<int32_t>(next - base_row);
  }
}

__global__ void kept_experts_kernel(int64_t pairs, const int32_t* experts, const int32_t* rows, int32_t* kept) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < pairs) kept[i] = rows[i] < 0 ? -1 : experts[i];
}

// A kernel that writes a buffer's filled rows clears the others beside that: its first `blocks` blocks own as many rows
// each, and look through all pairs for those that are filled.
constexpr int64_t kMostOwned = 32768;
struct Clearing {
  unsigned blocks = 0;
  int64_t rows = 0;  // of a block, a multiple of 32
};

Clearing clearing(const Routed& r) {
  Clearing c;
  c.rows = std::min(kMostOwned, (r.buffer_rows + 64 * 32 - 1) / (64 * 32) * 32);
  c.blocks = c.rows == 0 ? 0 : blocks((r.buffer_rows + c.rows - 1) / c.rows);
  return c;
}

template <typename Piece>
__device__ void clear_unfilled(const Routed& r, int64_t owned, Piece* buffer, int64_t row_pieces) {
  constexpr int kHeld = 4;  // of four pairs
  __shared__ unsigned filled[kMostOwned / 32];
  const int64_t first = blockIdx.x * owned, count = min(owned, r.buffer_rows - first), pairs = r.tokens * r.top_k;
  for (int64_t word = threadIdx.x; word < owned / 32; word += blockDim.x) filled[word] = 0;
  __syncthreads();
  const auto fill = [&](int32_t row) {
    const int64_t at = row - first;
    if (row >= 0 && at >= 0 && at < count) atomicOr(&filled[at / 32], 1u << (at % 32));
  };
  const int64_t fours = reinterpret_cast<uintptr_t>(r.rows) % 16 == 0 ? pairs / 4 : 0;
  for (int64_t base = threadIdx.x; base < fours; base += int64_t{kHeld} * blockDim.x) {
    int4 rows[kHeld];
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      const int64_t at = base + u * blockDim.x;
      rows[u] = at < fours ? reinterpret_cast<const int4*>(r.rows)[at] : make_int4(-1, -1, -1, -1);
    }
#pragma unroll
    for (int u = 0; u < kHeld; ++u) fill(rows[u].x), fill(rows[u].y), fill(rows[u].z), fill(rows[u].w);
  }
  for (int64_t at = fours * 4 + threadIdx.x; at < pairs; at += blockDim.x) fill(r.rows[at]);
  __syncthreads();
  const int lane = threadIdx.x & 31;
  for (int64_t word = threadIdx.x / 32; word * 32 < count; word += blockDim.x / 32)
    for (unsigned left = ~filled[word]; left != 0; left &= left - 1) {
      const int64_t row = word * 32 + __ffs(static_cast<int>(left)) - 1;
      if (row >= count) break;
      for (int64_t c = lane; c < row_pieces; c += 32) buffer[(first + row) * row_pieces + c] = Piece{};
    }
}

// A block a token: its row is read once, kHeld vectors a thread at a time, each group then written row by row. kStream:
// many rows a token; what is written leaves L2 at once.
template <bool kStream>
constexpr int kPermuteThreads = kStream ? 256 : 128;
template <typename T, bool kStream>
__global__ void __launch_bounds__(kPermuteThreads<kStream>)
    permute_kernel(Routed r, Clearing clear, const T* x, T* buffer) {
  constexpr int kThreads = kPermuteThreads<kStream>, kHeld = 4, kRows = 8;
  if (blockIdx.x < clear.blocks) return clear_unfilled(r, clear.rows, buffer, r.hidden);
  const int64_t token = blockIdx.x - clear.blocks;
  for (int64_t column = threadIdx.x; column < r.hidden; column += kHeld * kThreads) {
    T value[kHeld];
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (column + u * kThreads < r.hidden) value[u] = x[token * r.hidden + column + u * kThreads];
    for (int64_t first = 0; first < r.top_k; first += kRows) {
      int32_t row[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) row[j] = first + j < r.top_k ? r.rows[token * r.top_k + first + j] : -1;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (row[j] < 0) continue;
#pragma unroll
        for (int u = 0; u < kHeld; ++u) {
          T* const to = buffer + row[j] * r.hidden + column + u * kThreads;
          if (column + u * kThreads >= r.hidden) continue;
          if constexpr (kStream)
            __stcs(to, value[u]);
          else
            *to = value[u];
        }
      }
    }
  }
}

constexpr int kTokenThreads = 128;
// Sum over a token's rows in their order, each times its weight (1 without weights): kRows rows by kHeld vectors of
// columns are on their way.
template <int kWidth, typename T, int kRows, int kHeld>
__global__ void __launch_bounds__(kTokenThreads) gather_kernel(Routed r, const T* buffer, const float* weights, T* y) {
  const int64_t token = blockIdx.x, end = (token + 1) * r.top_k;
  constexpr int64_t kStep = kTokenThreads * kWidth;
  for (int64_t column = int64_t{threadIdx.x} * kWidth; column < r.hidden; column += kHeld * kStep) {
    float sum[kHeld][kWidth] = {};
    for (int64_t first = token * r.top_k; first < end; first += kRows) {
      int64_t row[kRows];
      float weight[kRows];
      RawValues<kWidth, T> raw[kRows][kHeld];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const bool there = first + j < end;
        row[j] = !there ? -1 : r.rows == nullptr ? first + j : r.rows[first + j];
        weight[j] = there && weights != nullptr ? weights[first + j] : 1.0f;
      }
#pragma unroll
      for (int j = 0; j < kRows; ++j)
#pragma unroll
        for (int u = 0; u < kHeld; ++u)
          if (row[j] >= 0 && column + u * kStep < r.hidden)
            raw[j][u].load(buffer + row[j] * r.hidden + column + u * kStep);
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (row[j] < 0) continue;
#pragma unroll
        for (int u = 0; u < kHeld; ++u) {
          if (column + u * kStep >= r.hidden) continue;
          float value[kWidth];
          raw[j][u].unpack(value);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) sum[u][i] += weight[j] * value[i];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (column + u * kStep < r.hidden) store<kWidth>(y + token * r.hidden + column + u * kStep, sum[u]);
  }
}

// A warp a pair; a token's pairs are neighbours, so that its row of dy comes from L1 but once.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kBlock) combine_grad_kernel(Routed r, Clearing clear, const T* dy, const T* buffer,
                                                              const float* weights, T* dbuffer, float* dweights) {
  using Piece = std::conditional_t<kWidth == 8, uint4, T>;
  if (blockIdx.x < clear.blocks)
    return clear_unfilled(r, clear.rows, reinterpret_cast<Piece*>(dbuffer),
                          r.hidden * static_cast<int64_t>(sizeof(T)) / static_cast<int64_t>(sizeof(Piece)));
  constexpr int kHeld = sizeof(T) == 2 ? 4 : 2;
  constexpr int64_t kStep = 32 * kWidth;
  const int lane = threadIdx.x & 31;
  const int64_t pair = int64_t{blockIdx.x - clear.blocks} * (kBlock / 32) + threadIdx.x / 32;
  if (pair >= r.tokens * r.top_k) return;
  const int64_t token = pair / r.top_k, row = r.rows == nullptr ? pair : r.rows[pair];
  const float weight = weights[pair];
  float dot = 0.0f;
  for (int64_t column = lane * kWidth; row >= 0 && column < r.hidden; column += kHeld * kStep) {
    RawValues<kWidth, T> raw_d[kHeld], raw_value[kHeld];
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (column + u * kStep >= r.hidden) continue;
      raw_value[u].load(buffer + row * r.hidden + column + u * kStep);
      raw_d[u].load(dy + token * r.hidden + column + u * kStep);
    }
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (column + u * kStep >= r.hidden) continue;
      float d[kWidth], value[kWidth];
      raw_d[u].unpack(d);
      raw_value[u].unpack(value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dot += d[i] * value[i];
        d[i] *= weight;
      }
      store<kWidth>(dbuffer + row * r.hidden + column + u * kStep, d);
    }
  }
  dot = warp_sum(dot);
  if (lane == 0) dweights[pair] = dot;
}

// The expert whose segment holds `row`, or -1: a lane an expert, for all of the warp.
__device__ __forceinline__ int expert_of(const int32_t* segments, int64_t experts, int64_t row) {
  for (int64_t e = threadIdx.x & 31; e - (threadIdx.x & 31) < experts; e += 32) {
    const int64_t first = e < experts ? segments[e] : 0, count = e < experts ? segments[experts + e] : 0;
    const unsigned found = __ballot_sync(0xffffffffu, row >= first && row < first + count);
    if (found != 0) return static_cast<int>(e - (threadIdx.x & 31)) + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

// A block a row, kHeld vectors a thread on their way while the row's expert is looked for.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kTokenThreads) grouped_bias_kernel(const T* x, const T* bias, const int32_t* segments,
                                                                     int64_t experts, float scale, T* y, int64_t cols) {
  constexpr int kHeld = 4;
  constexpr int64_t kStep = kTokenThreads * kWidth;
  const int64_t row = blockIdx.x;
  int expert = -1;
  for (int64_t base = 0; base < cols; base += kHeld * kStep) {
    const int64_t column = base + int64_t{threadIdx.x} * kWidth;
    RawValues<kWidth, T> raw[kHeld], raw_bias[kHeld];
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (column + u * kStep < cols) raw[u].load(x + row * cols + column + u * kStep);
    if (base == 0) expert = expert_of(segments, experts, row);
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (expert >= 0 && column + u * kStep < cols) raw_bias[u].load(bias + expert * cols + column + u * kStep);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (column + u * kStep >= cols) continue;
      float value[kWidth], add[kWidth] = {};
      raw[u].unpack(value);
      if (expert >= 0) raw_bias[u].unpack(add);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value[i] += scale * add[i];
      store<kWidth>(y + row * cols + column + u * kStep, value);
    }
  }
}

// Blocks (8 vectors of columns, expert): 8 lanes side by side, 64 strands of rows with kHeld rows each on their way.
constexpr int kStrands = 64;
template <int kWidth, typename T>
__global__ void __launch_bounds__(8 * kStrands)
    grouped_bias_grad_kernel(const T* dy, const int32_t* segments, int64_t experts, float scale, bool accumulate,
                             float* dbias, int64_t cols) {
  constexpr int kHeld = 4, kColumns = 8 * kWidth;
  __shared__ float sums[kStrands / 4][kColumns];
  const int lane = threadIdx.x & 31, strand = static_cast<int>(threadIdx.x) / 8;
  const int64_t column = int64_t{blockIdx.x} * kColumns + (lane & 7) * kWidth, expert = blockIdx.y;
  const int64_t first = segments[expert], end = first + segments[experts + expert];
  float sum[kWidth] = {};
  for (int64_t row = first + strand; column < cols && row < end; row += kHeld * kStrands) {
    RawValues<kWidth, T> raw[kHeld];
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (row + u * kStrands < end) raw[u].load(dy + (row + u * kStrands) * cols + column);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (row + u * kStrands >= end) continue;
      float value[kWidth];
      raw[u].unpack(value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 8);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 16);
    if (lane < 8) sums[threadIdx.x / 32][lane * kWidth + i] = sum[i];
  }
  __syncthreads();
  const int64_t mine = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || mine >= cols) return;
  float total = 0.0f;
  for (int warp = 0; warp < kStrands / 4; ++warp) total += sums[warp][threadIdx.x];
  float* const to = dbias + expert * cols + mine;
  *to = (accumulate ? *to : 0.0f) + scale * total;
}

}  // namespace

int64_t dispatch_workspace(const DispatchAttrs& attrs, int64_t pairs) {
  return (attrs.experts + pairs) * 4;
}

Status dispatch_plan(const DispatchAttrs& a, int64_t pairs, const int32_t* experts, const float* weights, int32_t* rows,
                     int32_t* segments, void* workspace, const Alarm& alarm, const Launch& launch) {
  auto* counts = static_cast<int32_t*>(workspace);
  int32_t* list = counts + a.experts;
  // A pair without an expert is on nobody's list: its row stays -1.
  MB_TRY(ok(cudaMemsetAsync(rows, 0xff, static_cast<size_t>(pairs) * sizeof(int32_t), launch.stream),
            "clearing the rows of a dispatch plan"));
  dispatch_count_kernel<<<blocks(a.experts), kScan, 0, launch.stream>>>(experts, pairs, counts);
  dispatch_list_kernel<<<blocks(a.experts), kScan, 0, launch.stream>>>(experts, pairs, counts, list);
  dispatch_rows_kernel<<<blocks(a.experts), kScan, 0, launch.stream>>>(a, weights, counts, list, rows, segments, alarm);
  return launched("dispatch_plan");
}

Status kept_experts(int64_t pairs, const int32_t* experts, const int32_t* rows, int32_t* kept, const Launch& launch) {
  kept_experts_kernel<<<blocks((pairs + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(pairs, experts, rows, kept);
  return launched("kept_experts");
}

Status permute(const Routed& r, const void* x, void* buffer, const Launch& launch) {
  const Clearing clear = clearing(r);
  const auto start = [&]<typename T>(const Routed& of, const T* from) {
    const bool stream = r.top_k >= 4;
    const auto kernel = stream ? permute_kernel<T, true> : permute_kernel<T, false>;
    const int threads = stream ? kPermuteThreads<true> : kPermuteThreads<false>;
    kernel<<<clear.blocks + blocks(r.tokens), threads, 0, launch.stream>>>(of, clear, from, static_cast<T*>(buffer));
    return launched("permute");
  };
  // A copy: of 16-byte pieces where rows divide into them.
  const int64_t piece = 16 / bytes_of(r.element);
  if (r.hidden % piece == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(buffer)) % 16 == 0) {
    Routed pieces = r;
    pieces.hidden /= piece;
    return start(pieces, static_cast<const uint4*>(x));
  }
  return r.element == Element::kF32 ? start(r, static_cast<const float*>(x)) : start(r, static_cast<const bf16*>(x));
}

namespace {

Status gather(const char* name, const Routed& r, const void* buffer, const float* weights, void* y,
              const Launch& launch) {
  return by_element(name, r.element, [&]<typename T>(T) {
    by_width(r.hidden, {buffer, y}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const auto kernel = r.top_k == 1   ? gather_kernel<kWidth, T, 1, 4>
                          : r.top_k == 2 ? gather_kernel<kWidth, T, 2, 4>
                          : r.top_k <= 4 ? gather_kernel<kWidth, T, 4, 2>
                                         : gather_kernel<kWidth, T, 8, 1>;
      kernel<<<blocks(r.tokens), kTokenThreads, 0, launch.stream>>>(r, static_cast<const T*>(buffer), weights,
                                                                    static_cast<T*>(y));
    });
  });
}

}  // namespace

Status permute_grad(const Routed& r, const void* dbuffer, void* dx, const Launch& launch) {
  return gather("permute_grad", r, dbuffer, nullptr, dx, launch);
}

Status combine(const Routed& r, const void* buffer, const float* weights, void* y, const Launch& launch) {
  return gather("combine", r, buffer, weights, y, launch);
}

Status combine_grad(const Routed& r, const void* dy, const void* buffer, const float* weights, void* dbuffer,
                    float* dweights, const Launch& launch) {
  const Clearing clear = r.rows == nullptr ? Clearing{} : clearing(r);
  constexpr int kWarps = kBlock / 32;
  const unsigned grid = clear.blocks + blocks((r.tokens * r.top_k + kWarps - 1) / kWarps);
  return by_element("combine_grad", r.element, [&]<typename T>(T) {
    by_width(r.hidden, {dy, buffer, dbuffer}, [&](auto width) {
      combine_grad_kernel<decltype(width)::value, T>
          <<<grid, kBlock, 0, launch.stream>>>(r, clear, static_cast<const T*>(dy), static_cast<const T*>(buffer),
                                               weights, static_cast<T*>(dbuffer), dweights);
    });
  });
}

Status grouped_bias(Element element, RowShape shape, const void* x, const void* bias, const int32_t* segments,
                    int64_t experts, float scale, void* y, const Launch& launch) {
  return by_element("grouped_bias", element, [&]<typename T>(T) {
    by_width(shape.cols, {x, bias, y}, [&](auto width) {
      grouped_bias_kernel<decltype(width)::value, T><<<blocks(shape.rows), kTokenThreads, 0, launch.stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(bias), segments, experts, scale, static_cast<T*>(y),
          shape.cols);
    });
  });
}

Status grouped_bias_grad(Element element, RowShape shape, const void* dy, const int32_t* segments, int64_t experts,
                         float scale, bool accumulate, float* dbias, const Launch& launch) {
  return by_element("grouped_bias_grad", element, [&]<typename T>(T) {
    by_width(shape.cols, {dy}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const dim3 grid(blocks((shape.cols + 8 * kWidth - 1) / (8 * kWidth)), blocks(experts));
      grouped_bias_grad_kernel<kWidth, T><<<grid, 8 * kStrands, 0, launch.stream>>>(
          static_cast<const T*>(dy), segments, experts, scale, accumulate, dbias, shape.cols);
    });
  });
}

}  // namespace mbb::trainer::cuda
