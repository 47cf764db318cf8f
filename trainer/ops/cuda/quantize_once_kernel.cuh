// FP8 quantization in one launch: the blocks find the largest magnitude together, then quantize, and what fits on the
// chip meanwhile is read once.
//
// A block's tiles come in three sorts. Those at the head of its list wait as bf16 in shared memory, those at its end
// in registers, and those between are read (and computed) again, the last first: they were read last and may still
// lie in L2. What no one reads again late in the kernel is loaded with a hint that it need not stay there. Values that
// lie in memory as they are quantized are copied to where they wait while the others are read.
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

// Starts a stored tile's copy to where it waits, each thread its own lines.
template <typename Producer>
__device__ __forceinline__ void copy_lines(const Producer& produce, int64_t row, int64_t column, int64_t rows,
                                           int64_t cols, uint4* to) {
  column = min(column, cols - 8);
#pragma unroll
  for (int l = 0; l < 8; ++l)
    copy16_async(shared_address(to + l * 256), produce.line(min(row + l, rows - 1), column), true);
}

// Those of the tiles that wait, a group each.
template <typename Producer, typename At>
__device__ __forceinline__ void copy_tiles(const Producer& produce, At&& at, const TilePlace& place, int64_t rows,
                                           int64_t cols, int tiles, uint4* waiting) {
#pragma unroll
  for (int i = 0; i < kQuantizeOnceWaiting; ++i) {
    if (i < tiles)
      copy_lines(produce, at(i).row + place.row, at(i).column + place.column, rows, cols,
                 waiting + i * 8 * 256 + threadIdx.x);
    copies_commit();
  }
}

// The largest magnitudes of the thread's lines of the tiles that wait, each as soon as its copies are there: they are
// the last groups of copies but for those of later tiles.
template <int kTile = 0>
__device__ __forceinline__ uint32_t waiting_top(const uint4* waiting, int tiles) {
  if constexpr (kTile == kQuantizeOnceWaiting) {
    return 0;
  } else {
    copies_wait<kQuantizeOnceWaiting - 1 - kTile>();
    uint32_t top = 0;
    if (kTile < tiles) {
      uint4 lines[8];
#pragma unroll
      for (int l = 0; l < 8; ++l) lines[l] = waiting[(kTile * 8 + l) * 256 + threadIdx.x];
      top = larger(0, lines);
    }
    return __vmaxu2(top, waiting_top<kTile + 1>(waiting, tiles));
  }
}

struct OnceScale {
  uint32_t* partials;  // [grid]
  float *amax, *inverse;
};

// Launched cooperatively with at most as many blocks as tiles. Dynamic shared memory: kQuantizeOnceShared.
template <typename Producer, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 2)
    quantize_once_kernel(Producer produce, int64_t rows, int64_t cols, int tiles_across, int tiles, OnceScale by,
                         uint8_t* q, uint8_t* qt) {
  constexpr int kOutputs = Producer::kOutputs, kKept = kQuantizeOnceKept;
  extern __shared__ uint4 waiting[];  // [tile][line][thread]
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  const auto grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int mine = (tiles - block + grid - 1) / grid;
  const int in_shared = min(mine, kQuantizeOnceWaiting), kept = min(mine - in_shared, kKept);
  const int past_streamed = mine - kept;
  const TilePlace place = tile_place<kOutputs>();
  const auto at = [&](int i) { return tile_at<kOutputs>(block + i * grid, tiles_across); };
  if constexpr (requires { produce.prepare(rows); }) {
    produce.prepare(rows);
    cooperative_groups::this_grid().sync();
  }
  uint32_t top = 0;
  uint4 keep[kKept][8];
  const auto load_kept = [&] {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (k >= kept) continue;
      const TileAt t = at(past_streamed + k);
      load_lines<Producer, true>(produce, t.row + place.row, t.column + place.column, rows, cols, keep[k]);
    }
  };
  if constexpr (Producer::kStored) {
    copy_tiles(produce, at, place, rows, cols, in_shared, waiting);
    load_kept();
  }
  for (int i = Producer::kStored ? in_shared : 0; i < past_streamed; ++i) {
    uint4 lines[8];
    load_lines<Producer, false>(produce, at(i).row + place.row, at(i).column + place.column, rows, cols, lines);
    top = larger(top, lines);
    if (i >= in_shared) continue;
#pragma unroll
    for (int l = 0; l < 8; ++l) waiting[(i * 8 + l) * 256 + threadIdx.x] = lines[l];
  }
  if constexpr (Producer::kStored)
    top = __vmaxu2(top, waiting_top(waiting, in_shared));
  else
    load_kept();
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (k < kept) top = larger(top, keep[k]);
  top = block_top(max(top & 0xffffu, top >> 16), tops);
  if (threadIdx.x == 0) by.partials[block] = top;
  cooperative_groups::this_grid().sync();
  top = 0;
  for (int i = static_cast<int>(threadIdx.x); i < grid; i += 256) top = max(top, __ldcg(by.partials + i));
  const float amax = __uint_as_float(block_top(top, tops) << 16);
  const float scale = tensor_scale(amax, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (block == 0 && threadIdx.x == 0) *by.inverse = 1.0f / scale, *by.amax = amax;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (k < kept) write_tile<kOutputs, kKind>(keep[k], scale, at(past_streamed + k), rows, cols, q, qt, turned);
  }
  for (int i = past_streamed; i-- > 0;) {
    uint4 lines[8];
    if (i >= in_shared) {
      load_lines<Producer, true>(produce, at(i).row + place.row, at(i).column + place.column, rows, cols, lines);
    } else {
#pragma unroll
      for (int l = 0; l < 8; ++l) lines[l] = waiting[(i * 8 + l) * 256 + threadIdx.x];
    }
    write_tile<kOutputs, kKind>(lines, scale, at(i), rows, cols, q, qt, turned);
  }
}

}  // namespace mbb::trainer::cuda
