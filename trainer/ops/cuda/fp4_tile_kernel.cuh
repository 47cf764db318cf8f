// NVFP4 (E2M1 codes in blocks of 16 under E4M3 scales) from tiles in registers, laid out as in block_tile_kernel.cuh:
// a pass for the largest magnitude of either copy, then one that writes both.
#pragma once

#include "trainer/ops/cuda/block_tile_kernel.cuh"
#include "trainer/ops/cuda/philox.cuh"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {

struct Fp4Tiles : BlockTiles {
  bool square;
  uint32_t signs;  // of a rotation
  uint64_t stream;
  const float* record;
  const int32_t* samples;
  int64_t batch;
  const float* amax;  // of both copies
};

__device__ __forceinline__ uint32_t signed_code(float value, uint32_t code) {
  return isnan(value) ? 7u : min(code, 7u) | (__float_as_uint(value) >> 28 & 8u);
}
// Codes of magnitudes from 1 on are an exponent and a bit, thus the leading bits of fp32; those below are halves.
__device__ __forceinline__ uint32_t nearest_fp4(float value) {
  constexpr float kHalves = 0x1p22f;  // its last bit is worth a half
  const float m = fabsf(value);
  const uint32_t bits = __float_as_uint(m), even = bits >> 22 & 1u;
  return signed_code(value, m < 1.0f ? __float_as_uint(m + kHalves) - __float_as_uint(kHalves)
                                     : ((bits + 0x1fffffu + even) >> 22) - 252u);
}
// Up where the random word is below what the next code down leaves, as a part of 2^32.
__device__ __forceinline__ uint32_t stochastic_fp4(float value, uint32_t random) {
  const float m = fabsf(value);
  const uint32_t bits = __float_as_uint(m);
  uint32_t code = (bits >> 22) - 252u, left = bits << 10;
  if (m < 1.0f) code = 1u, left = bits << 9;
  if (m < 0.5f) code = 0u, left = __float2uint_ru(m * 0x1p33f);
  if (random < left) ++code;
  return signed_code(value, code);
}

// A column's eight values in this lane with the eight in the lane beside: 16 values v become H · D · v / 4, one bit of
// the index after another in double, as on the host.
__device__ __forceinline__ void rotate_column(float (&v)[8], uint32_t signs) {
  const bool second = (threadIdx.x & 16) != 0;
  const uint32_t own = second ? signs >> 8 : signs;
  double d[8];
#pragma unroll
  for (int l = 0; l < 8; ++l) d[l] = static_cast<double>(own >> l & 1u ? -v[l] : v[l]);
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2) {
#pragma unroll
    for (int l = 0; l < 8; ++l) {
      if ((l & bit) != 0) continue;
      const double a = d[l], b = d[l | bit];
      d[l] = a + b, d[l | bit] = a - b;
    }
  }
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    const double other = __shfl_xor_sync(0xffffffffu, d[l], 16);
    v[l] = static_cast<float>((second ? other - d[l] : d[l] + other) * 0.25);
  }
}

// Values of four columns, the first or the second four of the thread's eight.
__device__ __forceinline__ void four_columns(const uint4 (&lines)[8], int half, float (&v)[4][8]) {
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    const uint32_t low = half ? lines[l].z : lines[l].x, high = half ? lines[l].w : lines[l].y;
    v[0][l] = __uint_as_float(low << 16), v[1][l] = __uint_as_float(low & 0xffff0000u);
    v[2][l] = __uint_as_float(high << 16), v[3][l] = __uint_as_float(high & 0xffff0000u);
  }
}

// NaN has the largest bits of all magnitudes, so that it wins.
__device__ __forceinline__ uint32_t column_top(const float (&v)[8]) {
  uint32_t top = 0;
#pragma unroll
  for (int l = 0; l < 8; ++l) top = max(top, __float_as_uint(fabsf(v[l])));
  return max(top, __shfl_xor_sync(0xffffffffu, top, 16));
}

__device__ __forceinline__ void raise_bits(float* amax, uint32_t bits, float seen) {
  bits = __reduce_max_sync(0xffffffffu, bits);
  if ((threadIdx.x & 31) == 0 && bits > __float_as_uint(seen)) atomicMax(reinterpret_cast<unsigned int*>(amax), bits);
}

template <bool kRotate>
__global__ void __launch_bounds__(256, 2) fp4_amax_kernel(Fp4Tiles t, const bf16* x, float* amax) {
  const TilePlace place = tile_place<1>();
  const MatrixTile at = block_tile_at(t);
  if (at.row >= t.rows) return;
  const float seen = __ldcg(amax), seen_turned = __ldcg(amax + 1);
  uint4 lines[8];
  load_tile(t, x, at, place, lines);
  const uint32_t two = larger(0, lines), plain = max(two & 0xffffu, two >> 16) << 16;
  uint32_t turned = plain;
  if constexpr (kRotate) {
    turned = 0;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      float v[4][8];
      four_columns(lines, half, v);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        rotate_column(v[c], t.signs);
        turned = max(turned, column_top(v[c]));
      }
    }
    if (at.row + place.row >= t.rows) turned = 0;  // other rows again, in other groups
  }
  raise_bits(amax, plain, seen);
  raise_bits(amax + 1, turned, seen_turned);
}

// bf16 magnitudes of the lines' blocks of 16, two lines a word; of square blocks they are all the same.
__device__ __forceinline__ void block_tops(const uint4 (&lines)[8], bool square, uint32_t (&tops)[4]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    uint32_t top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 one[1] = {lines[pair * 2 + i]};
      top[i] = larger(0, one);
    }
    tops[pair] = __vmaxu2(__byte_perm(top[0], top[1], 0x5410), __byte_perm(top[0], top[1], 0x7632));
    tops[pair] = __vmaxu2(tops[pair], __shfl_xor_sync(0xffffffffu, tops[pair], 1));
  }
  if (!square) return;
  uint32_t all = __vmaxu2(__vmaxu2(tops[0], tops[1]), __vmaxu2(tops[2], tops[3]));
  all = __vmaxu2(all, __byte_perm(all, all, 0x1032));
  all = __vmaxu2(all, __shfl_xor_sync(0xffffffffu, all, 16));
#pragma unroll
  for (uint32_t& top : tops) top = all;
}

// Where the thread's rows draw: its first row is of a token and a sample of the batch, the others follow.
class RowDraws {
 public:
  __device__ __forceinline__ RowDraws(const Fp4Tiles& t, const MatrixTile& at, const TilePlace& place)
      : samples_(t.samples), batch_(static_cast<uint32_t>(t.batch)), cols_(t.cols), column_(at.column + place.column) {
    const auto row = static_cast<uint32_t>(at.row + place.row);
    token_ = batch_ == 0 ? 0 : row / batch_;
    of_batch_ = row - token_ * batch_;
  }
  // The words of row l's first or second four columns.
  __device__ __forceinline__ PhiloxBlock words(const PhiloxKeys& keys, uint32_t l, int half) const {
    uint32_t token = token_, of_batch = of_batch_ + l;
    for (; of_batch >= batch_; of_batch -= batch_) ++token;
    return keys.block(static_cast<uint64_t>(int64_t{samples_[of_batch]}),
                      static_cast<uint64_t>(token * cols_ + column_) / 4 + half);
  }

 private:
  const int32_t* samples_;
  uint32_t batch_, token_, of_batch_;
  int64_t cols_, column_;
};

// Scales of the tile, [copy][line][block], then those in memory.
struct TileScales {
  alignas(8) uint8_t kept[2][128][8];
};
__device__ __forceinline__ void write_scales(const Fp4Tiles& t, const MatrixTile& at, const TileScales& scales) {
  const bool column = threadIdx.x >= 128;
  const int in_tile = static_cast<int>(threadIdx.x) & 127;
  const int64_t line = (column ? at.column : at.row) + in_tile, lines = column ? t.cols : t.rows;
  if (line >= lines || (t.square && in_tile % 16 != 0)) return;
  const int64_t inner = column ? t.rows : t.cols, first = (column ? at.row : at.column) / 16, parts = (inner + 15) / 16;
  const int64_t scale_line = t.square ? line / 16 : line, scale_lines = t.square ? (t.rows + 15) / 16 : t.rows;
  const int64_t to_line = column ? scale_line * t.stack + at.matrix : at.matrix * scale_lines + scale_line;
  auto* const to = static_cast<uint8_t*>(column ? t.column_copy.scales : t.row_copy.scales) + to_line * parts + first;
  const uint8_t* const from = scales.kept[column ? 1 : 0][in_tile];
  if (first + 8 <= parts && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
    return;
  }
  for (int i = 0; i < 8 && first + i < parts; ++i) to[i] = from[i];
}

template <bool kStochastic>
__device__ __forceinline__ void write_rows(const Fp4Tiles& t, const MatrixTile& at, const TilePlace& place,
                                           const uint4 (&lines)[8], const uint32_t (&tops)[4], const PhiloxKeys& keys,
                                           float of_copy, TileScales& scales) {
  const int64_t row = at.row + place.row, column = at.column + place.column;
  auto* const to = static_cast<uint8_t*>(t.row_copy.q) + ((at.matrix * t.rows + row) * t.cols + column) / 2;
  const RowDraws draws(t, at, place);
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    const BlockFactor f = e4m3_factor(__uint_as_float((tops[l / 2] >> (l % 2 * 16)) << 16), of_copy);
    if ((threadIdx.x & 1) == 0) scales.kept[0][place.row + l][place.column / 16] = static_cast<uint8_t>(f.kept);
    float v[8];
    unpack(lines[l], v);
    uint32_t word = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      PhiloxBlock random{};
      if constexpr (kStochastic) random = draws.words(keys, l, half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = v[half * 4 + i] * f.factor;
        word |= (kStochastic ? stochastic_fp4(value, random.word[i]) : nearest_fp4(value)) << (half * 16 + i * 4);
      }
    }
    if (row < t.rows && column < t.cols) *reinterpret_cast<uint32_t*>(to + l * (t.cols / 2)) = word;
  }
}

// Codes of the columns, eight rows a word, in shared memory: [column][rows / 8], swizzled.
__device__ __forceinline__ int turned_word(int column, int rows8) {
  return column * 16 + (rows8 ^ (column >> 3));
}

template <bool kRotate, bool kStochastic>
__device__ __forceinline__ void turn_columns(const Fp4Tiles& t, const MatrixTile& at, const TilePlace& place,
                                             const uint4 (&lines)[8], const uint32_t (&tops)[4], const PhiloxKeys& keys,
                                             float of_copy, TileScales& scales, uint32_t* turned) {
  const RowDraws draws(t, at, place);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    float v[4][8], factor[4];
    four_columns(lines, half, v);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if constexpr (kRotate) rotate_column(v[c], t.signs);
      const uint32_t top = t.square ? tops[0] << 16 : column_top(v[c]);
      const BlockFactor f = e4m3_factor(__uint_as_float(top), of_copy);
      factor[c] = f.factor;
      if ((threadIdx.x & 16) == 0)
        scales.kept[1][place.column + half * 4 + c][place.row / 16] = static_cast<uint8_t>(f.kept);
    }
    uint32_t word[4] = {};
#pragma unroll
    for (int l = 0; l < 8; ++l) {
      PhiloxBlock random{};
      if constexpr (kStochastic) random = draws.words(keys, l, half);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float value = v[c][l] * factor[c];
        word[c] |= (kStochastic ? stochastic_fp4(value, random.word[c]) : nearest_fp4(value)) << (l * 4);
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) turned[turned_word(place.column + half * 4 + c, place.row / 8)] = word[c];
  }
}

__device__ __forceinline__ void write_turned_fp4(const Fp4Tiles& t, const MatrixTile& at, const uint32_t* turned) {
  const int rows16 = static_cast<int>(threadIdx.x) & 7;
  const int64_t row = at.row + rows16 * 16;
  if (row >= t.rows) return;
#pragma unroll
  for (int it = 0; it < 4; ++it) {
    const int in_tile = it * 32 + (static_cast<int>(threadIdx.x) >> 3);
    const int64_t column = at.column + in_tile;
    if (column >= t.cols) return;
    auto* const to = static_cast<uint8_t*>(t.column_copy.q) + ((column * t.stack + at.matrix) * t.rows + row) / 2;
    *reinterpret_cast<uint2*>(to) =
        make_uint2(turned[turned_word(in_tile, rows16 * 2)], turned[turned_word(in_tile, rows16 * 2 + 1)]);
  }
}

template <bool kRotate, bool kStochastic>
__global__ void __launch_bounds__(256, 2) fp4_tiles_kernel(Fp4Tiles t, const bf16* x) {
  __shared__ uint32_t turned[128 * 16];
  __shared__ TileScales scales;
  const TilePlace place = tile_place<1>();
  const MatrixTile at = block_tile_at(t);
  if (at.row >= t.rows) return;
  uint4 lines[8];
  load_tile(t, x, at, place, lines);
  const float of_rows = fp4_tensor_scale(t.amax[0]), of_columns = fp4_tensor_scale(t.amax[1]);
  if (at.matrix == 0 && at.row == 0 && at.column == 0 && threadIdx.x == 0) {
    *t.row_copy.inverse = 1.0f / of_rows;
    *t.column_copy.inverse = 1.0f / of_columns;
  }
  const auto step = kStochastic ? static_cast<uint64_t>(t.record[StepRecord::kStep]) : 0;
  const uint64_t key = rng_mix(t.stream ^ (step + kRngGamma));
  uint32_t tops[4];
  block_tops(lines, t.square, tops);
  write_rows<kStochastic>(t, at, place, lines, tops, PhiloxKeys(key), of_rows, scales);
  turn_columns<kRotate, kStochastic>(t, at, place, lines, tops, PhiloxKeys(rng_mix(key)), of_columns, scales, turned);
  __syncthreads();
  write_scales(t, at, scales);
  write_turned_fp4(t, at, turned);
}

}  // namespace mbb::trainer::cuda
