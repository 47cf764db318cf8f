// FP8 quantization in one launch: the blocks find the largest magnitude together, then quantize, and what fits on the
// chip meanwhile is read once.
//
// A block's tiles come in three sorts. Those at the head of its list wait as bf16 in shared memory, those at its end
// in registers, and those between are read (and computed) again, the last first: they were read last and may still
// lie in L2. What no one reads again late in the kernel is loaded with a hint that it need not stay there.
#pragma once

#include <cooperative_groups.h>

#include "trainer/ops/cuda/kernel_plan.h"
#include "trainer/ops/cuda/quantize_kernel.cuh"

namespace mbb::trainer::cuda {

// In two approximate instructions (2 units in the last place each), without the slow paths of a division: kernels that
// have many values on their way stay free of branches. Where the exponential overflows the quotient is 0.
__device__ __forceinline__ float quick_sigmoid(float x) {
  float power, quotient;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1.0f + power));
  return quotient;
}

// Producers like those of the two launches, except that a thread has kReads lines of 8 stored values of each of
// kInFlight rows on their way before it makes the first value. With kOnce a line need not stay in L2. kStored: the line
// is the values.
template <bool kOnce>
__device__ __forceinline__ uint4 load_line(const bf16* from) {
  const auto* line = reinterpret_cast<const uint4*>(from);
  return kOnce ? __ldcs(line) : *line;
}
__device__ __forceinline__ void unpack(const uint4& line, float (&to)[8]) {
  load8(reinterpret_cast<const bf16*>(&line), to);
}

struct PlainOnce {
  static constexpr int kReads = 1, kOutputs = 1, kInFlight = 4;
  static constexpr bool kStored = true;
  const bf16* x;
  int64_t cols;
  template <bool kOnce>
  __device__ void read(int64_t row, int64_t column, uint4 (&lines)[1]) const {
    lines[0] = load_line<kOnce>(x + row * cols + column);
  }
  __device__ void make(int64_t, int64_t, const uint4 (&lines)[1], float (&out)[1][8]) const {
    unpack(lines[0], out[0]);
  }
};

// An RMSNorm's output; the kernel finds rstd first, and a block reads what others wrote.
struct NormOnce {
  static constexpr int kReads = 1, kOutputs = 1, kInFlight = 4;
  static constexpr bool kStored = false;
  const bf16* x;
  const bf16* weight;
  float* rstd;
  int64_t cols;
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
      if (lane == 0) rstd[row] = rsqrtf(sum * (1.0f / static_cast<float>(cols)) + eps);
    }
  }
  template <bool kOnce>
  __device__ void read(int64_t row, int64_t column, uint4 (&lines)[1]) const {
    lines[0] = load_line<kOnce>(x + row * cols + column);
  }
  __device__ void make(int64_t row, int64_t column, const uint4 (&lines)[1], float (&out)[1][8]) const {
    float w[8];
    unpack(lines[0], out[0]);
    load8(weight + column, w);
    const float r = __ldcg(rstd + row);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[0][i] = rounded<bf16>(out[0][i] * r * w[i]);
  }
};

struct SwigluOnce {
  static constexpr int kReads = 2, kOutputs = 1, kInFlight = 4;
  static constexpr bool kStored = false;
  const bf16* gate_up;
  int64_t cols;
  template <bool kOnce>
  __device__ void read(int64_t row, int64_t column, uint4 (&lines)[2]) const {
    lines[0] = load_line<kOnce>(gate_up + row * 2 * cols + column);
    lines[1] = load_line<kOnce>(gate_up + row * 2 * cols + cols + column);
  }
  __device__ void make(int64_t, int64_t, const uint4 (&lines)[2], float (&out)[1][8]) const {
    float up[8];
    unpack(lines[0], out[0]);
    unpack(lines[1], up);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[0][i] = rounded<bf16>(out[0][i] * quick_sigmoid(out[0][i]) * up[i]);
  }
};

struct SwigluBackwardOnce {
  static constexpr int kReads = 3, kOutputs = 2, kInFlight = 2;
  static constexpr bool kStored = false;
  const bf16* gate_up;
  const bf16* dy;
  int64_t cols;
  template <bool kOnce>
  __device__ void read(int64_t row, int64_t column, uint4 (&lines)[3]) const {
    lines[0] = load_line<kOnce>(gate_up + row * 2 * cols + column);
    lines[1] = load_line<kOnce>(gate_up + row * 2 * cols + cols + column);
    lines[2] = load_line<kOnce>(dy + row * cols + column);
  }
  __device__ void make(int64_t, int64_t, const uint4 (&lines)[3], float (&out)[2][8]) const {
    float d[8];
    unpack(lines[0], out[0]);
    unpack(lines[1], out[1]);
    unpack(lines[2], d);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float gate = out[0][i], up = out[1][i], s = quick_sigmoid(gate);
      out[0][i] = rounded<bf16>(d[i] * up * s * (1.0f + gate * (1.0f - s)));
      out[1][i] = rounded<bf16>(d[i] * gate * s);
    }
  }
};

// A tile is 128 rows of 128 results: 128 columns of one output, or 64 columns of two. A thread has 8 lines of 8
// results each: 8 rows, or 4 rows of each output.
struct TilePlace {
  int row, column;  // of the thread's first line, in the tile
};

template <int kOutputs>
__device__ __forceinline__ TilePlace tile_place() {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if constexpr (kOutputs == 1) {
    return {(warp * 2 + (lane >> 4)) * 8, (lane & 15) * 8};
  }
  // The bits of a row group are dealt so that a warp's words of a turned tile lie in different banks.
  const int group = (lane >> 3 & 1) << 1 | (lane >> 4) << 4 | (warp & 1) | (warp >> 1) << 2;
  return {group * 4, (lane & 7) * 8};
}

// Results as bf16. Rows and columns that are not there repeat others, which changes no maximum and is not written.
template <typename Producer, bool kOnce>
__device__ __forceinline__ void load_lines(const Producer& produce, int64_t row, int64_t column, int64_t rows,
                                           int64_t cols, uint4 (&lines)[8]) {
  constexpr int kOutputs = Producer::kOutputs, kRows = 8 / kOutputs;
  constexpr int kBatch = Producer::kStored ? kRows : Producer::kInFlight;
  column = min(column, cols - 8);
#pragma unroll
  for (int first = 0; first < kRows; first += kBatch) {
    uint4 raw[kBatch][Producer::kReads];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) produce.template read<kOnce>(min(row + first + r, rows - 1), column, raw[r]);
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      if constexpr (Producer::kStored) {
        lines[first + r] = raw[r][0];
      } else {
        float values[kOutputs][8];
        produce.make(min(row + first + r, rows - 1), column, raw[r], values);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) store8(reinterpret_cast<bf16*>(&lines[o * kRows + first + r]), values[o]);
      }
    }
  }
}

// Magnitudes of bf16 order as their bits do; NaN stands above infinity.
__device__ __forceinline__ uint32_t larger(uint32_t top, const uint4 (&lines)[8]) {
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    top = __vmaxu2(top, lines[l].x & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].y & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].z & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].w & 0x7fff7fffu);
  }
  return top;
}

// All threads get the largest of the block's values.
__device__ __forceinline__ uint32_t block_top(uint32_t top, uint32_t* scratch) {
  top = __reduce_max_sync(0xffffffffu, top);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = top;
  __syncthreads();
  return __reduce_max_sync(0xffffffffu, scratch[threadIdx.x & 7]);
}

template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ uint2 codes_of(const uint4& line, float scale) {
  float v[8];
  load8(reinterpret_cast<const bf16*>(&line), v);
#pragma unroll
  for (float& x : v) x *= scale;
  return make_uint2(pack_fp8<kKind>(v[0], v[1], v[2], v[3]), pack_fp8<kKind>(v[4], v[5], v[6], v[7]));
}

struct TileAt {
  int64_t row, column;  // of the tile's corner, in a matrix of `cols` columns an output
};

template <int kOutputs>
__device__ __forceinline__ TileAt tile_at(int tile, int tiles_across) {
  const int down = tile / tiles_across;
  return {int64_t{down} * 128, int64_t{tile - down * tiles_across} * (128 / kOutputs)};
}

// Writes a tile's codes, plain and turned through shared memory.
template <int kOutputs, __nv_fp8_interpretation_t kKind>
__device__ __forceinline__ void write_tile(const uint4 (&lines)[8], float scale, TileAt at, int64_t rows, int64_t cols,
                                           uint8_t* q, uint8_t* qt, uint32_t* turned) {
  constexpr int kRows = 8 / kOutputs;
  const TilePlace place = tile_place<kOutputs>();
  const int64_t row = at.row + place.row, column = at.column + place.column;
  uint2 codes[8];
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    codes[l] = codes_of<kKind>(lines[l], scale);
    const int64_t own_row = row + l % kRows;
    if (q != nullptr && own_row < rows && column < cols)
      *reinterpret_cast<uint2*>(q + (own_row * kOutputs + l / kRows) * cols + column) = codes[l];
  }
  if (qt == nullptr) return;
  __syncthreads();  // the tile before has been read
#pragma unroll
  for (int four = 0; four < 2; ++four) {  // lines of four rows that lie below each other
    const int row_word = kOutputs == 1 ? place.row / 4 + four : place.row / 4;
    const int first = kOutputs == 1 ? place.column : four * 64 + place.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2* l = codes + four * 4;
      const uint32_t a = half ? l[0].y : l[0].x, b = half ? l[1].y : l[1].x;
      const uint32_t c = half ? l[2].y : l[2].x, d = half ? l[3].y : l[3].x;
      const uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
      const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      const int word = first + half * 4;
      turned[tile_word(word + 0, row_word)] = __byte_perm(ab_low, cd_low, 0x5410);
      turned[tile_word(word + 1, row_word)] = __byte_perm(ab_low, cd_low, 0x7632);
      turned[tile_word(word + 2, row_word)] = __byte_perm(ab_high, cd_high, 0x5410);
      turned[tile_word(word + 3, row_word)] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int chunk = lane & 7;  // 16 rows of a column
  const int64_t out_row = at.row + chunk * 16;
#pragma unroll
  for (int it = 0; it < 4; ++it) {
    const int group = warp * 4 + it;
    const int result = ((group >> 3) * 4 + (lane >> 3)) * 8 + (group & 7);
    const int output = kOutputs == 1 ? 0 : result >> 6;
    const int64_t out_column = at.column + (kOutputs == 1 ? result : result & 63);
    if (out_row >= rows || out_column >= cols) continue;
    uint4 value;
    value.x = turned[tile_word(result, chunk * 4 + 0)];
    value.y = turned[tile_word(result, chunk * 4 + 1)];
    value.z = turned[tile_word(result, chunk * 4 + 2)];
    value.w = turned[tile_word(result, chunk * 4 + 3)];
    *reinterpret_cast<uint4*>(qt + (output * cols + out_column) * rows + out_row) = value;
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
  __shared__ uint32_t turned[128 * 32];
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
  for (int i = 0; i < past_streamed; ++i) {
    uint4 lines[8];
    load_lines<Producer, false>(produce, at(i).row + place.row, at(i).column + place.column, rows, cols, lines);
    top = larger(top, lines);
    if (i >= in_shared) continue;
#pragma unroll
    for (int l = 0; l < 8; ++l) waiting[(i * 8 + l) * 256 + threadIdx.x] = lines[l];
  }
  uint4 keep[kKept][8];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (k < kept) {
      const TileAt t = at(past_streamed + k);
      load_lines<Producer, true>(produce, t.row + place.row, t.column + place.column, rows, cols, keep[k]);
      top = larger(top, keep[k]);
    }
  }
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
