// FP8 quantization in two launches, and what the one launch (quantize_once_kernel.cuh) shares with them: 128 x 128
// tiles written plain and transposed; producers compute the values instead of loading them.
#pragma once

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/early_launch.cuh"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

__device__ __forceinline__ float tensor_scale(float amax, float fp8_max) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;  // zero, NaN or infinity
  const float scale = fp8_max / amax;
  return isinf(scale) ? 3.402823466e38f : scale;
}

// rows word of a column in shared memory: column-major words of four rows, swizzled so that writes meet no bank twice.
__device__ __forceinline__ int tile_word(int column, int row_word) {
  const int group = column >> 3;
  return column * 32 + (row_word ^ ((group & 1) | ((group >> 1) << 2)));
}

// A producer gives, for 8 columns of a row of [rows, cols], kOutputs sets of 8 values, which are rounded where they are
// stored as bf16; set o belongs to columns o * cols + column. A thread has kReads lines of 8 stored values of each of
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

struct PlainProducer {
  static constexpr int kReads = 1, kOutputs = 1, kInFlight = 4;
  static constexpr bool kStored = true;
  const bf16* x;
  int64_t cols;
  __device__ const bf16* line(int64_t row, int64_t column) const { return x + row * cols + column; }
  template <bool kOnce>
  __device__ void read(int64_t row, int64_t column, uint4 (&lines)[1]) const {
    lines[0] = load_line<kOnce>(line(row, column));
  }
  __device__ void make(int64_t, int64_t, const uint4 (&lines)[1], float (&out)[1][8]) const {
    unpack(lines[0], out[0]);
  }
};

// An RMSNorm's output; in the one launch a block reads what others of the grid wrote.
struct NormProducer {
  static constexpr int kReads = 1, kOutputs = 1, kInFlight = 4;
  static constexpr bool kStored = false;
  const bf16* x;
  const bf16* weight;
  const float* rstd;
  int64_t cols;
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
    for (int i = 0; i < 8; ++i) out[0][i] = out[0][i] * r * w[i];
  }
};

struct SwigluProducer {
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
    for (int i = 0; i < 8; ++i) out[0][i] = out[0][i] * quick_sigmoid(out[0][i]) * up[i];
  }
};

struct SwigluBackwardProducer {
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
      out[0][i] = d[i] * up * s * (1.0f + gate * (1.0f - s));
      out[1][i] = d[i] * gate * s;
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

// Results as bf16, read for the last time. Rows and columns that are not there repeat others, which changes no maximum
// and is not written.
template <typename Producer>
__device__ __forceinline__ void load_lines(const Producer& produce, int64_t row, int64_t column, int64_t rows,
                                           int64_t cols, uint4 (&lines)[8]) {
  constexpr int kOutputs = Producer::kOutputs, kRows = 8 / kOutputs;
  constexpr int kBatch = Producer::kStored ? kRows : Producer::kInFlight;
  column = min(column, cols - 8);
#pragma unroll
  for (int first = 0; first < kRows; first += kBatch) {
    uint4 raw[kBatch][Producer::kReads];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) produce.template read<true>(min(row + first + r, rows - 1), column, raw[r]);
    if constexpr (Producer::kStored) __syncwarp();  // no load is put off past the first use of another
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
template <int kLines>
__device__ __forceinline__ uint32_t larger(uint32_t top, const uint4 (&lines)[kLines]) {
#pragma unroll
  for (int l = 0; l < kLines; ++l) {
    top = __vmaxu2(top, lines[l].x & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].y & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].z & 0x7fff7fffu);
    top = __vmaxu2(top, lines[l].w & 0x7fff7fffu);
  }
  return top;
}
// Of a warp, and of the halves of its words.
__device__ __forceinline__ uint32_t warp_top(uint32_t top) {
  return __reduce_max_sync(0xffffffffu, max(top & 0xffffu, top >> 16));
}
// Into `amax`, a non-negative float that only grows.
__device__ __forceinline__ void raise_top(float* amax, uint32_t top) {
  top <<= 16;
  if (top > __float_as_uint(__ldcg(amax))) atomicMax(reinterpret_cast<unsigned int*>(amax), top);
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

// The codes turned through shared memory: 16 rows of a column a store; columns are `pitch` codes apart. A column and
// the seven beside it are swizzled alike, so that their words lie at fixed distances. With kStream, and below, codes
// need not stay in L2.
template <bool kStream, typename Vector>
__device__ __forceinline__ void store_codes(uint8_t* to, const Vector& codes) {
  auto* const at = reinterpret_cast<Vector*>(to);
  if constexpr (kStream)
    __stcs(at, codes);
  else
    *at = codes;
}
template <int kOutputs, bool kStream = false>
__device__ __forceinline__ void write_turned(const uint2 (&codes)[8], TileAt at, int64_t rows, int64_t cols,
                                             int64_t pitch, uint8_t* qt, uint32_t* turned) {
  const TilePlace place = tile_place<kOutputs>();
  __syncthreads();  // the tile before has been read
#pragma unroll
  for (int four = 0; four < 2; ++four) {  // lines of four rows that lie below each other
    const int row_word = kOutputs == 1 ? place.row / 4 + four : place.row / 4;
    uint32_t* const to = turned + tile_word(kOutputs == 1 ? place.column : four * 64 + place.column, row_word);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2* l = codes + four * 4;
      const uint32_t a = half ? l[0].y : l[0].x, b = half ? l[1].y : l[1].x;
      const uint32_t c = half ? l[2].y : l[2].x, d = half ? l[3].y : l[3].x;
      const uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
      const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      to[(half * 4 + 0) * 32] = __byte_perm(ab_low, cd_low, 0x5410);
      to[(half * 4 + 1) * 32] = __byte_perm(ab_low, cd_low, 0x7632);
      to[(half * 4 + 2) * 32] = __byte_perm(ab_high, cd_high, 0x5410);
      to[(half * 4 + 3) * 32] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int chunk = lane & 7, group = (warp >> 1) * 4 + (lane >> 3);  // 16 rows, and 8 columns of which it takes four
  const int result = group * 8 + (warp & 1) * 4, output = kOutputs == 1 ? 0 : result >> 6;
  const int64_t out_row = at.row + chunk * 16, out_column = at.column + (kOutputs == 1 ? result : result & 63);
  if (out_row >= rows || out_column >= cols) return;
  const auto* const from = reinterpret_cast<const uint4*>(turned + (tile_word(result, chunk * 4) & ~3));
  const uint32_t own = group & 1 ? 0x7654 : 0x3210;  // the swizzle exchanges two words of a pair
  uint8_t* const to = qt + (output * cols + out_column) * pitch + out_row;
#pragma unroll
  for (int it = 0; it < 4; ++it) {
    const uint4 v = from[it * 8];
    store_codes<kStream>(to + it * pitch, make_uint4(__byte_perm(v.x, v.y, own), __byte_perm(v.y, v.x, own),
                                                     __byte_perm(v.z, v.w, own), __byte_perm(v.w, v.z, own)));
  }
}

// Writes a tile's codes, plain and turned.
template <int kOutputs, __nv_fp8_interpretation_t kKind, bool kStream = false>
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
      store_codes<kStream>(q + (own_row * kOutputs + l / kRows) * cols + column, codes[l]);
  }
  if (qt != nullptr) write_turned<kOutputs, kStream>(codes, at, rows, cols, rows, qt, turned);
}

// A thread has kAmaxInFlight vectors on their way; the host keeps the count of vectors below 2^32.
template <typename Producer>
constexpr int kAmaxInFlight = Producer::kStored ? 4 : 2;

template <typename Producer>
__global__ void __launch_bounds__(256) amax_kernel(Producer produce, int64_t rows, int64_t cols, float* amax) {
  launch_dependents();
  constexpr int kBatch = kAmaxInFlight<Producer>, kOutputs = Producer::kOutputs;
  const auto vectors = static_cast<uint32_t>(cols / 8), count = static_cast<uint32_t>(rows * (cols / 8));
  uint32_t top = 0;
  for (uint64_t base = uint64_t{blockIdx.x} * 256 * kBatch + threadIdx.x; base < count;
       base += uint64_t{gridDim.x} * 256 * kBatch) {
    uint4 raw[kBatch][Producer::kReads];
    uint32_t row[kBatch];
    int64_t column[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const auto at = static_cast<uint32_t>(min(base + u * 256, uint64_t{count} - 1));
      row[u] = rows == 1 ? 0 : at / vectors;
      column[u] = int64_t{at - row[u] * vectors} * 8;
      produce.template read<false>(row[u], column[u], raw[u]);
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if constexpr (Producer::kStored) {
        top = larger(top, raw[u]);
      } else {
        float values[kOutputs][8];
        uint4 lines[kOutputs];
        produce.make(row[u], column[u], raw[u], values);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) store8(reinterpret_cast<bf16*>(&lines[o]), values[o]);
        top = larger(top, lines);
      }
    }
  }
  top = warp_top(top);
  if ((threadIdx.x & 31) == 0) raise_top(amax, top);
}

struct QuantizeScale {
  const float *amax, *given;
  float *found_amax, *inverse;
};

// A block a tile of the grid: gridDim.x tiles down, then the next column of them, then the next such row. From the last
// to the first: the pass before ended there, and its tail may still be in L2.
template <typename Producer, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 4)
    quantize_kernel(Producer produce, int64_t rows, int64_t cols, QuantizeScale by, uint8_t* q, uint8_t* qt) {
  constexpr int kOutputs = Producer::kOutputs;
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  const TilePlace place = tile_place<kOutputs>();
  const unsigned down = (gridDim.z - 1 - blockIdx.z) * gridDim.x + gridDim.x - 1 - blockIdx.x;
  const TileAt at{int64_t{down} * 128, int64_t{gridDim.y - 1 - blockIdx.y} * (128 / kOutputs)};
  if (at.row >= rows) return;
  uint4 lines[8];
  load_lines(produce, at.row + place.row, at.column + place.column, rows, cols, lines);
  const float scale = by.given != nullptr ? *by.given : tensor_scale(*by.amax, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (at.row == 0 && at.column == 0 && threadIdx.x == 0) *by.inverse = 1.0f / scale;
  const uint32_t top = by.found_amax != nullptr ? warp_top(larger(0, lines)) : 0;
  if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = top;
  write_tile<kOutputs, kKind>(lines, scale, at, rows, cols, q, qt, turned);
  if (by.found_amax == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const uint32_t all = __reduce_max_sync(0xffffffffu, tops[threadIdx.x & 7]);
  if (threadIdx.x == 0) raise_top(by.found_amax, all);
}

}  // namespace mbb::trainer::cuda
