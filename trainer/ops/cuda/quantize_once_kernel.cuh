// FP8 quantization in one launch: the blocks find the largest magnitude together, then quantize, and what fits on the
// chip meanwhile is read once.
//
// A block's tiles come in three sorts. The first wait as bf16 in shared memory, the last in registers, and those
// between are read (and computed) again, the last first: they were read last and may still lie in L2. What no one reads
// again is loaded with a hint that it need not stay there, and codes are stored so.
#pragma once

#include <cooperative_groups.h>

#include "trainer/ops/cuda/kernel_plan.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/quantize_kernel.cuh"

namespace mbb::trainer::cuda {

// A norm whose rstd the kernel finds first.
struct NormOnce : NormProducer {
  float* found_rstd;
  float eps;
  // A warp a row.
  __device__ void prepare(int64_t rows) const {
    const int lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
    for (int64_t row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); row < rows; row += warps) {
      float sum = 0.0f;
#pragma unroll 4
      for (int64_t column = lane * 8; column < cols; column += 256) {
        float v[8];
        load8(x + row * cols + column, v);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += v[i] * v[i];
      }
      sum = warp_sum(sum);
      if (lane == 0) found_rstd[row] = rsqrtf(sum * (1.0f / static_cast<float>(cols)) + eps);
    }
  }
};

// All threads get the largest of the block's values.
__device__ __forceinline__ uint32_t block_top(uint32_t top, uint32_t* scratch) {
  top = __reduce_max_sync(0xffffffffu, top);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = top;
  __syncthreads();
  return __reduce_max_sync(0xffffffffu, scratch[threadIdx.x & 7]);
}

struct OnceScale {
  uint32_t* partials;  // [grid]
  float *amax, *inverse;
};

// All blocks' scale, from the largest magnitude of each thread.
template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ float grid_scale(uint32_t top, const OnceScale& by, uint32_t* scratch) {
  top = block_top(top, scratch);
  if (threadIdx.x == 0) by.partials[blockIdx.x] = top;
  cooperative_groups::this_grid().sync();
  top = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += 256) top = max(top, __ldcg(by.partials + i));
  const float amax = __uint_as_float(block_top(top, scratch) << 16);
  const float scale = tensor_scale(amax, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (blockIdx.x == 0 && threadIdx.x == 0) *by.inverse = 1.0f / scale, *by.amax = amax;
  return scale;
}

// A block's tiles: first, first + step, ...
struct OnceTiles {
  int first, step, count, across;
  __device__ __forceinline__ int waiting() const { return min(count, kQuantizeOnceWaiting); }
  __device__ __forceinline__ int others() const { return count - waiting(); }
  __device__ __forceinline__ int again() const { return max(others() - kQuantizeOnceKept, 0); }
  template <int kOutputs>
  __device__ __forceinline__ TileAt at(int i) const {
    return tile_at<kOutputs>(first + i * step, across);
  }
};
__device__ __forceinline__ OnceTiles tiles_of_grid(int tiles, int across) {
  const auto grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return {block, grid, (tiles - block + grid - 1) / grid, across};
}

// Of values that lie in memory: a thread's lines. All copies' lines need not stay in L2.
struct StoredTiles : OnceTiles {
  const bf16* x;
  int64_t rows, cols;
  TilePlace place;
  uint4* slots;  // [tile][line], 256 vectors apart
  uint64_t once;

  __device__ __forceinline__ StoredTiles(const OnceTiles& tiles, const bf16* from, int64_t all_rows, int64_t all_cols,
                                         uint4* waiting)
      : OnceTiles(tiles),
        x(from),
        rows(all_rows),
        cols(all_cols),
        place(tile_place<1>()),
        slots(waiting + threadIdx.x) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  }
  // Lines that are not there repeat others.
  __device__ __forceinline__ const bf16* from(int i) const {
    const TileAt t = at<1>(i);
    return x + min(t.row + place.row, rows - 8) * cols + min(t.column + place.column, cols - 8);
  }
  __device__ __forceinline__ void copy(int i, int slot) const {
    const bf16* const line = from(i);
#pragma unroll
    for (int l = 0; l < 8; ++l)
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                       shared_address(slots + (slot * 8 + l) * 256)),
                   "l"(line + l * cols), "l"(once)
                   : "memory");
  }
  __device__ __forceinline__ void load(int i, bool last, uint4 (&lines)[8]) const {
    const bf16* const line = from(i);
#pragma unroll
    for (int l = 0; l < 8; ++l) lines[l] = last ? load_line<true>(line + l * cols) : load_line<false>(line + l * cols);
    __syncwarp();  // no load is put off past the first use of another
  }
  // Once the groups of copies before the last `later` are there. The slot is free then.
  template <int kLater>
  __device__ __forceinline__ void take(int slot, uint4 (&lines)[8]) const {
    copies_wait<kLater>();
    __syncwarp();
#pragma unroll
    for (int l = 0; l < 8; ++l) lines[l] = slots[(slot * 8 + l) * 256];
#pragma unroll
    for (uint4& v : lines) asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)::"memory");
  }
  // Which tile keep[k] holds at the end: every second of the others passes through it.
  __device__ __forceinline__ int kept(int k) const {
    return count - 1 - ((others() - 1 - k) & 1);
  }
};
static_assert(kQuantizeOnceWaiting == 3 && kQuantizeOnceKept == 2);

// see(lines, i) of each tile: those that wait after the others, or first where seeing takes long, so that the others'
// loads have the time.
template <bool kWaitingFirst, typename See>
__device__ __forceinline__ void see_tiles(const StoredTiles& tiles, uint4 (&keep)[2][8], See&& see) {
  const int waiting = tiles.waiting(), others = tiles.others();
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (i < waiting) tiles.copy(i, i);
    copies_commit();
  }
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (k < others) tiles.load(waiting + k, others <= 2, keep[k]);
  const auto see_waiting = [&] {
    uint4 lines[8];
    if (waiting > 0) tiles.take<2>(0, lines), see(lines, 0);
    if (waiting > 1) tiles.take<1>(1, lines), see(lines, 1);
    if (waiting > 2) tiles.take<0>(2, lines), see(lines, 2);
  };
  if constexpr (kWaitingFirst) see_waiting();
  for (int j = 2; j < others; j += 2) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (j + k >= others) continue;
      see(keep[k], waiting + j + k - 2);
      tiles.load(waiting + j + k, j + k + 2 >= others, keep[k]);
    }
  }
  if constexpr (!kWaitingFirst) see_waiting();
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (k < others) see(keep[k], tiles.kept(k));
}

// write(lines, i) of each tile. A slot that is free is taken by the next tile that is read again.
template <typename Write>
__device__ __forceinline__ void write_tiles(const StoredTiles& tiles, const uint4 (&keep)[2][8], Write&& write) {
  const int waiting = tiles.waiting(), again = tiles.again();
  int next = waiting + again;
  const auto take = [&](int slot, int i) {
    uint4 lines[8];
    tiles.take<2>(slot, lines);
    if (next > waiting) tiles.copy(--next, slot);
    copies_commit();
    write(lines, i);
  };
  for (int i = 0; i < waiting; ++i) take(i, i);
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (k < tiles.others()) write(keep[k], tiles.kept(k));
  for (int i = 0; i < again; ++i) take(i % 3, waiting + again - 1 - i);
}

// Launched cooperatively with at most as many blocks as tiles, as are the others. Dynamic shared memory: what waits.
template <__nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 2) quantize_once_kernel(PlainProducer produce, int64_t rows, int tiles_across,
                                                               int tiles, OnceScale by, uint8_t* q, uint8_t* qt) {
  extern __shared__ uint4 waiting[];
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  const StoredTiles of(tiles_of_grid(tiles, tiles_across), produce.x, rows, produce.cols, waiting);
  uint4 keep[2][8];
  uint32_t top = 0;
  see_tiles<false>(of, keep, [&](const uint4(&lines)[8], int) { top = larger(top, lines); });
  const float scale = grid_scale<kKind>(max(top & 0xffffu, top >> 16), by, tops);
  write_tiles(of, keep, [&](const uint4(&lines)[8], int i) {
    write_tile<1, kKind, true>(lines, scale, of.at<1>(i), rows, produce.cols, q, qt, turned);
  });
}

// Values that are made of others: reads of four rows are on their way.
template <typename Producer, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 2)
    quantize_made_once_kernel(Producer produce, int64_t rows, int64_t cols, int tiles_across, int tiles, OnceScale by,
                              uint8_t* q, uint8_t* qt) {
  constexpr int kOutputs = Producer::kOutputs, kRows = 8 / kOutputs, kAhead = 4;
  extern __shared__ uint4 waiting[];  // [tile][line][thread]
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  const OnceTiles of = tiles_of_grid(tiles, tiles_across);
  const int in_shared = of.waiting(), kept = of.count - in_shared - of.again(), first_kept = of.count - kept;
  const TilePlace place = tile_place<kOutputs>();
  if constexpr (requires { produce.prepare(rows); }) {
    produce.prepare(rows);
    cooperative_groups::this_grid().sync();
  }
  uint4 ahead[kAhead][Producer::kReads];
  const auto row_of = [&](int i, int r) { return min(of.at<kOutputs>(i).row + place.row + r, rows - 1); };
  const auto column_of = [&](int i) { return min(of.at<kOutputs>(i).column + place.column, cols - 8); };
  const auto fetch = [&](int i, int r) {
    if (i >= of.count) return;
    if (i < in_shared || i >= first_kept)
      produce.template read<true>(row_of(i, r), column_of(i), ahead[r % kAhead]);
    else
      produce.template read<false>(row_of(i, r), column_of(i), ahead[r % kAhead]);
  };
  const auto make = [&](int i, uint4(&lines)[8]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float values[kOutputs][8];
      produce.make(row_of(i, r), column_of(i), ahead[r % kAhead], values);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) store8(reinterpret_cast<bf16*>(&lines[o * kRows + r]), values[o]);
      fetch(i + (r + kAhead) / kRows, (r + kAhead) % kRows);
      __syncwarp();  // no load is put off
    }
  };
#pragma unroll
  for (int r = 0; r < kAhead; ++r) fetch(0, r);
  uint32_t top = 0;
  for (int i = 0; i < first_kept; ++i) {
    uint4 lines[8];
    make(i, lines);
    top = larger(top, lines);
    if (i >= in_shared) continue;
#pragma unroll
    for (int l = 0; l < 8; ++l) waiting[(i * 8 + l) * 256 + threadIdx.x] = lines[l];
  }
  uint4 keep[kQuantizeOnceKept][8];
#pragma unroll
  for (int k = 0; k < kQuantizeOnceKept; ++k)
    if (k < kept) make(first_kept + k, keep[k]), top = larger(top, keep[k]);
  const float scale = grid_scale<kKind>(max(top & 0xffffu, top >> 16), by, tops);
  const auto write = [&](const uint4(&lines)[8], int i) {
    write_tile<kOutputs, kKind, true>(lines, scale, of.at<kOutputs>(i), rows, cols, q, qt, turned);
  };
#pragma unroll
  for (int k = 0; k < kQuantizeOnceKept; ++k)
    if (k < kept) write(keep[k], first_kept + k);
  for (int i = first_kept; i-- > 0;) {
    uint4 lines[8];
    if (i >= in_shared) {
      const TileAt at = of.at<kOutputs>(i);
      load_lines(produce, at.row + place.row, at.column + place.column, rows, cols, lines);
    } else {
#pragma unroll
      for (int l = 0; l < 8; ++l) lines[l] = waiting[(i * 8 + l) * 256 + threadIdx.x];
    }
    write(lines, i);
  }
}

}  // namespace mbb::trainer::cuda
