// NVFP4 (E2M1 codes in blocks of 16 under E4M3 scales) from tiles in registers: after a pass for the largest magnitude
// of either copy, one that writes both. A warp has 16 rows of a tile of block_tile_kernel.cuh, a thread four columns
// of them, so that columns' blocks and their rotation are a thread's own.
#pragma once

#include "trainer/ops/cuda/block_tile_kernel.cuh"
#include "trainer/ops/cuda/fp4_code.cuh"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {

struct Fp4Tiles : BlockTiles {
  float turn[16];  // a quarter with a rotation's signs
  uint64_t stream;
  const float* record;
  const int32_t* samples;
  int64_t batch;
  const float* amax;  // of the tensor, and of the columns' copy where that is rotated
  unsigned resident;  // tiles at a time, where they are fetched ahead
};

struct Fp4Place {
  int lane, warp, row, column;  // of the thread's first line, in the tile
};
__device__ __forceinline__ Fp4Place fp4_place() {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  return {lane, warp, warp * 16, lane * 4};
}

// Of a tile's lines, of so many that are left.
__device__ __forceinline__ int inside(int64_t left) {
  return static_cast<int>(min(left, int64_t{128}));
}

// Sixteen rows are all inside or all outside; lines outside repeat others, which changes no maximum. Offsets from a
// tile's corner are of 32 bits.
template <bool kOnce>
__device__ __forceinline__ void load_tile(const BlockTiles& t, const bf16* x, const MatrixTile& at,
                                          const Fp4Place& place, uint2 (&lines)[16]) {
  const int row = min(place.row, inside(t.rows - at.row) - 16),
            column = min(place.column, inside(t.cols - at.column) - 4);
  const auto* const corner = reinterpret_cast<const uint8_t*>(x + (at.matrix * t.rows + at.row) * t.cols + at.column);
  const uint32_t pitch = static_cast<uint32_t>(t.cols) * 2, first = row * pitch + column * 2;
#pragma unroll
  for (int l = 0; l < 16; ++l) {
    const auto* const line = reinterpret_cast<const uint2*>(corner + (first + l * pitch));
    lines[l] = kOnce ? __ldcs(line) : *line;
  }
  __syncwarp();  // no load is put off past the first use of another
}

// The tile's values on their way to L2: 128 bytes a thread.
__device__ __forceinline__ void fetch_ahead(const BlockTiles& t, const bf16* x, const MatrixTile& at) {
  const int64_t row = at.row + (threadIdx.x >> 1), column = at.column + (threadIdx.x & 1) * 64;
  if (row < t.rows && column < t.cols)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x + (at.matrix * t.rows + row) * t.cols + column));
}

__device__ __forceinline__ float value_at(const uint2& line, int column) {
  const uint32_t two = column < 2 ? line.x : line.y;
  return __uint_as_float(column % 2 == 0 ? two << 16 : two & 0xffff0000u);
}
__device__ __forceinline__ void column_of(const uint2 (&lines)[16], int column, float (&v)[16]) {
#pragma unroll
  for (int l = 0; l < 16; ++l) v[l] = value_at(lines[l], column);
}

// H · D · v / 4 of 16 rows of a column, as on the host: one bit of the index after another, those below kBits here. The
// first one's sums round once, as products by a quarter are exact.
template <int kBits = 16>
__device__ __forceinline__ void rotate_column(const float (&turn)[16], float (&v)[16]) {
#pragma unroll
  for (int l = 0; l < 16; l += 2) {
    const float a = v[l] * turn[l], b = v[l + 1];
    v[l] = fmaf(b, turn[l + 1], a), v[l + 1] = fmaf(b, -turn[l + 1], a);
  }
#pragma unroll
  for (int bit = 2; bit < kBits; bit *= 2) {
#pragma unroll
    for (int l = 0; l < 16; ++l) {
      if ((l & bit) != 0) continue;
      const float a = v[l], b = v[l | bit];
      v[l] = a + b, v[l | bit] = a - b;
    }
  }
}
// The largest magnitude that the last bit's sums and differences will have: a pair's is the sum of its magnitudes. For
// a NaN of two infinities, infinity.
__device__ __forceinline__ uint32_t last_bit_top(const float (&v)[16]) {
  uint32_t top = 0;
#pragma unroll
  for (int l = 0; l < 8; l += 2)
    top = __vimax3_u32(top, __float_as_uint(fabsf(v[l]) + fabsf(v[l + 8])),
                       __float_as_uint(fabsf(v[l + 1]) + fabsf(v[l + 9])));
  return top;
}

// The larger magnitude; NaN, without a sign, when either is.
__device__ __forceinline__ float larger_magnitude(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
  return larger;
}
__device__ __forceinline__ float column_top(const float (&v)[16]) {
  float top[4];
#pragma unroll
  for (int l = 0; l < 16; ++l) top[l % 4] = l < 4 ? v[l] : larger_magnitude(top[l % 4], v[l]);
  return larger_magnitude(larger_magnitude(top[0], top[1]), larger_magnitude(top[2], top[3]));
}

// Largest magnitudes of both copies, each by one thread of the block: atomics of every warp would wait for each other.
__device__ __forceinline__ void raise_amax(float* amax, uint32_t plain, uint32_t turned) {
  __shared__ uint32_t tops[2][8];
  plain = __reduce_max_sync(0xffffffffu, plain), turned = __reduce_max_sync(0xffffffffu, turned);
  if ((threadIdx.x & 31) == 0) tops[0][threadIdx.x >> 5] = plain, tops[1][threadIdx.x >> 5] = turned;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  uint32_t top = 0;
#pragma unroll
  for (const uint32_t of_warp : tops[threadIdx.x]) top = max(top, of_warp);
  float* const to = amax + threadIdx.x;
  if (top > __float_as_uint(__ldcg(to))) atomicMax(reinterpret_cast<unsigned int*>(to), top);
}

// Whether no rotated magnitude of a column can be as large as what was seen: a quarter of the sum of the column's
// magnitudes is the most. Sums in bf16, four deep, are less than a hundredth off.
__device__ __forceinline__ bool rotated_below(const uint2 (&lines)[16], float seen) {
  const auto pair = [&](int l, bool later) {
    const uint32_t bits = (later ? lines[l].y : lines[l].x) & 0x7fff7fffu;
    return reinterpret_cast<const __nv_bfloat162&>(bits);
  };
  __nv_bfloat162 sum[2];
#pragma unroll
  for (int later = 0; later < 2; ++later) {
    __nv_bfloat162 of_four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      of_four[i] = __hadd2(__hadd2(pair(i * 4, later), pair(i * 4 + 1, later)),
                           __hadd2(pair(i * 4 + 2, later), pair(i * 4 + 3, later)));
    sum[later] = __hadd2(__hadd2(of_four[0], of_four[1]), __hadd2(of_four[2], of_four[3]));
  }
  const __nv_bfloat162 most = __hmax2_nan(sum[0], sum[1]);
  return __low2float(most) * (0.25f * 1.01f) < seen && __high2float(most) * (0.25f * 1.01f) < seen;
}

// Where columns are rotated: of both copies.
__global__ void __launch_bounds__(256, 4) fp4_amax_kernel(Fp4Tiles t, const bf16* x, float* amax) {
  launch_dependents();
  const Fp4Place place = fp4_place();
  const MatrixTile at = block_tile_at(blockIdx);
  const float seen = __ldcg(amax + 1);
  uint2 lines[16];
  load_tile<false>(t, x, at, place, lines);
  uint32_t two = 0, turned = 0;
#pragma unroll
  for (int l = 0; l < 16; ++l) two = __vmaxu2(__vmaxu2(two, lines[l].x & 0x7fff7fffu), lines[l].y & 0x7fff7fffu);
  // Rows outside are others again, in other groups.
  if (at.row + place.row < t.rows && !__all_sync(0xffffffffu, rotated_below(lines, seen))) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float v[16];
      column_of(lines, c, v);
      rotate_column<8>(t.turn, v);
      turned = max(turned, last_bit_top(v));
    }
  }
  raise_amax(amax, max(two & 0xffffu, two >> 16) << 16, turned);
}

// Where a tile's rows draw: of their samples, from the draw of its first columns on.
struct alignas(8) RowDraws {
  int32_t sample;
  uint32_t first;
  __device__ __forceinline__ void find(const Fp4Tiles& t, const MatrixTile& at, int in_tile) {
    const auto row = static_cast<uint32_t>(min(at.row + in_tile, t.rows - 1)), batch = static_cast<uint32_t>(t.batch);
    const uint32_t token = batch == 1 ? row : row / batch;
    sample = t.samples[row - token * batch];
    first = token * static_cast<uint32_t>((t.cols + 15) / 16) + static_cast<uint32_t>(at.column / 16);
  }
};

// Random words of a warp's 16 rows, each of four columns. A lane draws for 64 columns of a row.
struct Fp4Draws {
  RowDraws rows[128];
  alignas(16) uint32_t words[8][16][36];  // [warp][row][four columns]; the rest spreads rows over banks
  __device__ __forceinline__ void draw(uint64_t key, const Fp4Place& place) {
    const PhiloxKeys keys(key);
    const int row = place.lane & 15, half = place.lane >> 4;
    const RowDraws of_row = rows[place.row + row];
    const PhiloxSample sample = keys.of_sample(static_cast<uint64_t>(int64_t{of_row.sample}));
    auto* const to = reinterpret_cast<uint4*>(&words[place.warp][row][half * 16]);
    __syncwarp();
#pragma unroll 2
    for (int i = 0; i < 4; ++i) {
      const PhiloxBlock block = keys.block<kRoundingRounds>(sample, of_row.first + half * 4 + i);
      to[i] = make_uint4(block.word[0], block.word[1], block.word[2], block.word[3]);
    }
    __syncwarp();
  }
};

struct Fp4Shared {
  uint2 turned[128 * 8];                    // codes of a column's 16 rows
  alignas(16) uint32_t rows[8][8][32];      // codes of a warp's rows, two a word
  alignas(16) float row_factors[8][8][20];  // of a warp's blocks, each with 16 rows; the rest spreads them over banks
  float factors[2][128];                    // by the scale's code
  float of_copy[2];                         // scales of the whole copies
  uint64_t keys[2];                         // of random words
  alignas(8) uint8_t scales[2][128][8];     // [copy][line][block]
};
// A thread writes four neighbouring columns, one after another; half a warp's lie in all banks, two in each. Codes of
// 32 rows lie together.
__device__ __forceinline__ uint32_t turned_at(uint32_t column, uint32_t rows16) {
  const uint32_t four = column >> 2;
  return ((column & 3) * 32 + four) * 8 + (rows16 ^ (four & 6));
}

// The larger magnitudes of two lanes' words: of the first ones in the lane where `later` is not set, of the second ones
// in the other, which differs in bit `lane` of its number.
__device__ __forceinline__ uint32_t larger_of(bool later, int lane, uint32_t first, uint32_t second) {
  const uint32_t others = __shfl_xor_sync(0xffffffffu, later ? first : second, lane);
  return __vmaxu2(later ? second : first, others);
}

// The larger magnitudes of two pairs of bf16, NaN where either is; each with some sign.
__device__ __forceinline__ uint32_t larger_two(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// bf16 magnitudes of four rows' blocks, two rows a word: each of a block's four lanes has four of its rows.
__device__ __forceinline__ uint2 row_tops(const Fp4Place& place, const uint2 (&lines)[16]) {
  uint32_t tops[8];
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    const uint2 a = lines[pair * 2], b = lines[pair * 2 + 1];
    const uint32_t of_a = larger_two(a.x, a.y), of_b = larger_two(b.x, b.y);
    tops[pair] = larger_two(__byte_perm(of_a, of_b, 0x5410), __byte_perm(of_a, of_b, 0x7632)) & 0x7fff7fffu;
  }
  const bool odd = (place.lane & 1) != 0, later = (place.lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) tops[i] = larger_of(later, 2, tops[i], tops[i + 4]);
  return make_uint2(larger_of(odd, 1, tops[0], tops[2]), larger_of(odd, 1, tops[1], tops[3]));
}
// Of a square block, in all of its lanes.
__device__ __forceinline__ uint32_t square_top(const uint2 (&lines)[16]) {
  uint32_t two = 0;
#pragma unroll
  for (int l = 0; l < 16; ++l) two = __vmaxu2(__vmaxu2(two, lines[l].x & 0x7fff7fffu), lines[l].y & 0x7fff7fffu);
  two = __vmaxu2(two, __shfl_xor_sync(0xffffffffu, two, 1));
  two = __vmaxu2(two, __shfl_xor_sync(0xffffffffu, two, 2));
  return max(two & 0xffffu, two >> 16);
}

// The row factors that the thread needs, by way of shared memory: each of a block's lanes finds four rows'.
__device__ __forceinline__ void find_row_factors(const Fp4Place& place, const uint2 (&lines)[16], Fp4Shared& shared) {
  const uint2 tops = row_tops(place, lines);
  const int block = place.lane >> 2, row = (place.lane & 3) * 4;
  const float of_copy = shared.of_copy[0];
  float factor[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = i < 2 ? tops.x : tops.y;
    const float top = __uint_as_float(i % 2 == 0 ? two << 16 : two & 0xffff0000u);
    const uint32_t code = fp4_scale_code(top, of_copy);
    factor[i] = shared.factors[0][code & 127];
    shared.scales[0][place.row + row + i][block] = static_cast<uint8_t>(code);
  }
  *reinterpret_cast<float4*>(&shared.row_factors[place.warp][block][row]) =
      make_float4(factor[0], factor[1], factor[2], factor[3]);
  __syncwarp();
}
// Both copies of a square block have one scale.
__device__ __forceinline__ float square_factor(const Fp4Place& place, const uint2 (&lines)[16], Fp4Shared& shared) {
  const uint32_t code = fp4_scale_code(__uint_as_float(square_top(lines) << 16), shared.of_copy[0]);
  if ((place.lane & 3) == 0) {
    const int block = place.lane >> 2;
    shared.scales[0][place.row][block] = shared.scales[1][block * 16][place.warp] = static_cast<uint8_t>(code);
  }
  return shared.factors[0][code & 127];
}

// Two rows' codes of the thread's four columns, the first row's in the low half.
template <bool kStochastic>
__device__ __forceinline__ uint32_t two_rows(const float (&value)[8], const Fp4Place& place, int row,
                                             const Fp4Draws& draws) {
  if constexpr (!kStochastic) return nearest_word(value);
  const auto& words = draws.words[place.warp];
  return stochastic_word(value, [&](int i) { return nine_bits_of(words[row + i / 4][place.lane], i % 2 != 0); });
}

template <bool kSquare, bool kStochastic>
__device__ __forceinline__ void find_rows(const Fp4Place& place, const uint2 (&lines)[16], const Fp4Draws& draws,
                                          Fp4Shared& shared, uint32_t (&words)[8]) {
  float2 factor{};
  if constexpr (kSquare)
    factor.x = factor.y = square_factor(place, lines, shared);
  else
    find_row_factors(place, lines, shared);
  const float* const factors = shared.row_factors[place.warp][place.lane >> 2];
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    if constexpr (!kSquare) factor = *reinterpret_cast<const float2*>(factors + pair * 2);
    float value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = value_at(lines[pair * 2 + i / 4], i % 4) * (i < 4 ? factor.x : factor.y);
    words[pair] = two_rows<kStochastic>(value, place, pair * 2, draws);
  }
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) shared.rows[place.warp][pair][place.lane] = words[pair];
}
__device__ __forceinline__ void write_rows(const Fp4Tiles& t, const MatrixTile& at, const Fp4Place& place,
                                           const Fp4Shared& shared) {
  const auto& rows = shared.rows[place.warp];
  __syncwarp();
  const int first = place.lane >> 3, block = place.lane & 7, row = place.row + first * 2;
  const int columns = inside(t.cols - at.column) - block * 16;
  const int64_t pitch = t.cols / 2;
  if (t.row_copy.q == nullptr || row >= inside(t.rows - at.row) || columns <= 0) return;
  uint8_t* to = static_cast<uint8_t*>(t.row_copy.q) + ((at.matrix * t.rows + at.row) * t.cols + at.column) / 2;
  to += row * pitch + block * 8;
  const bool whole = t.cols % 16 == 0, second = columns > 8;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const uint4 v = *reinterpret_cast<const uint4*>(&rows[first + r / 2 * 4][block * 4]);
    const uint32_t half = r % 2 == 0 ? 0x5410 : 0x7632;
    const uint2 codes = make_uint2(__byte_perm(v.x, v.y, half), __byte_perm(v.z, v.w, half));
    if (whole) {
      *reinterpret_cast<uint2*>(to) = codes;
    } else {
      *reinterpret_cast<uint32_t*>(to) = codes.x;
      if (second) *reinterpret_cast<uint32_t*>(to + 4) = codes.y;
    }
    to += r == 1 ? 7 * pitch : pitch;
  }
}

// What square blocks have in their columns: the same nibbles. words[p] has rows 2p and 2p + 1, four columns of each.
__device__ __forceinline__ void turn_squares(const Fp4Place& place, const uint32_t (&words)[8], Fp4Shared& shared) {
  uint32_t column[4][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* const w = words + half * 4;
#pragma unroll
    for (int two = 0; two < 2; ++two) {  // bytes of two columns, of rows 0..3 and 4..7
      const uint32_t bytes = two == 0 ? 0x6420 : 0x7531;
      const uint32_t a = __byte_perm(w[0], w[1], bytes), b = __byte_perm(w[2], w[3], bytes);
      const auto low = [](uint32_t x) { return (x & 0x000f000fu) | (x >> 4 & 0x00f000f0u); };
      const auto high = [](uint32_t x) { return (x >> 4 & 0x000f000fu) | (x >> 8 & 0x00f000f0u); };
      column[two * 2][half] = __byte_perm(low(a), low(b), 0x6420);
      column[two * 2 + 1][half] = __byte_perm(high(a), high(b), 0x6420);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
    shared.turned[turned_at(place.column + c, place.warp)] = make_uint2(column[c][0], column[c][1]);
}

// The factor of a column's block; its scale is kept.
__device__ __forceinline__ float column_factor(const Fp4Place& place, int c, float top, float of_copy,
                                               Fp4Shared& shared) {
  const uint32_t code = fp4_scale_code(top, of_copy);
  shared.scales[1][place.column + c][place.warp] = static_cast<uint8_t>(code);
  return shared.factors[1][code & 127];
}

// Eight rows' codes of one of the thread's columns.
template <bool kStochastic>
__device__ __forceinline__ uint32_t eight_rows(const float (&value)[8], const Fp4Place& place, int row, int column,
                                               const Fp4Draws& draws) {
  if constexpr (!kStochastic) return nearest_word(value);
  const auto& words = draws.words[place.warp];
  return stochastic_word(
      value, [&](int i) { return nine_bits_of(words[row + i][place.lane], words[row + i + 2][place.lane], column); });
}

// The column, rotated where it is, and its largest magnitude.
template <bool kRotate, bool kStochastic>
__device__ __forceinline__ float turn_column(const float (&turn)[16], float (&v)[16]) {
  if constexpr (!kRotate || kStochastic) {  // registers of stochastic ones are full
    if constexpr (kRotate) rotate_column(turn, v);
    return column_top(v);
  }
  rotate_column<8>(turn, v);
  const uint32_t top = last_bit_top(v);
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    const float a = v[l], b = v[l + 8];
    v[l] = a + b, v[l + 8] = a - b;
  }
  return top == 0x7f800000u ? column_top(v) : __uint_as_float(top);
}

template <bool kRotate, bool kStochastic>
__device__ __forceinline__ void turn_columns(const Fp4Tiles& t, const Fp4Place& place, const uint2 (&lines)[16],
                                             const Fp4Draws& draws, Fp4Shared& shared) {
  const float of_copy = shared.of_copy[1];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float v[16];
    column_of(lines, c, v);
    const float factor = column_factor(place, c, turn_column<kRotate, kStochastic>(t.turn, v), of_copy, shared);
    uint32_t word[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float value[8];
#pragma unroll
      for (int l = 0; l < 8; ++l) value[l] = v[half * 8 + l] * factor;
      word[half] = eight_rows<kStochastic>(value, place, half * 8, c, draws);
    }
    shared.turned[turned_at(place.column + c, place.warp)] = make_uint2(word[0], word[1]);
  }
}

// Eight scales of a line, or so many as there are.
__device__ __forceinline__ void write_line_scales(uint8_t* to, const uint8_t* from, int parts) {
  if (parts >= 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
    return;
  }
  for (int i = 0; i < 8 && i < parts; ++i) to[i] = from[i];
}
template <bool kSquare>
__device__ __forceinline__ void write_scales(const Fp4Tiles& t, const MatrixTile& at, const Fp4Shared& shared) {
  const int in_tile = static_cast<int>(threadIdx.x) & 127, line = kSquare ? in_tile / 16 : in_tile;
  constexpr int kLines = kSquare ? 16 : 1;  // under one scale
  if (kSquare && in_tile % 16 != 0) return;
  const int64_t across = (t.cols + 15) / 16, down = (t.rows + 15) / 16;
  const int64_t first = at.column / 16, top = at.row / 16;
  if (threadIdx.x < 128) {
    if (t.row_copy.scales == nullptr || in_tile >= inside(t.rows - at.row)) return;
    auto* const to = static_cast<uint8_t*>(t.row_copy.scales) +
                     (at.matrix * (kSquare ? down : t.rows) + at.row / kLines) * across + first;
    write_line_scales(to + line * across, shared.scales[0][in_tile], inside(across - first));
  } else {
    if (t.column_copy.scales == nullptr || in_tile >= inside(t.cols - at.column)) return;
    auto* const to =
        static_cast<uint8_t*>(t.column_copy.scales) + (at.column / kLines * t.stack + at.matrix) * down + top;
    write_line_scales(to + line * (t.stack * down), shared.scales[1][in_tile], inside(down - top));
  }
}

__device__ __forceinline__ void write_turned_fp4(const Fp4Tiles& t, const MatrixTile& at, const Fp4Shared& shared) {
  const uint32_t rows16 = threadIdx.x & 7, first = threadIdx.x >> 3;
  if (t.column_copy.q == nullptr || static_cast<int>(rows16) * 16 >= inside(t.rows - at.row)) return;
  const int columns = inside(t.cols - at.column) - static_cast<int>(first);
  const int64_t pitch = t.stack * t.rows / 2;
  auto* to = static_cast<uint8_t*>(t.column_copy.q) + at.column * pitch + (at.matrix * t.rows + at.row) / 2;
  to += first * pitch + rows16 * 8;
#pragma unroll
  for (int it = 0; it < 4; ++it) {
    if (it * 32 >= columns) return;
    // turned_at of 32 columns further on
    *reinterpret_cast<uint2*>(to) = shared.turned[turned_at(first, rows16) + it * 64];
    to += 32 * pitch;
  }
}

// The scale of a whole copy, and factors by the scale's code: a warp's four a lane. Of codes 32 apart the first one's
// is sixteen times the other's, but for the least eight and NaN's.
template <bool kStochastic>
__device__ __forceinline__ void find_factors(const Fp4Tiles& t, int copy, float amax, float step, Fp4Shared& shared) {
  constexpr float kUnit = kStochastic ? 0x1p-14f : 1.0f;
  const auto lane = static_cast<uint32_t>(threadIdx.x) & 31;
  const float of_copy = fp4_tensor_scale(amax);
  const float factor = fp4_factor(lane + 64, of_copy), least = fp4_factor(lane & 7, of_copy);
  float* const to = shared.factors[copy] + lane;
  to[0] = (lane < 8 ? least : factor * 256.0f) * kUnit;
  to[32] = factor * 16.0f * kUnit;
  to[64] = factor * kUnit;
  to[96] = lane == 31 ? __int_as_float(0x7fffffff) : factor * 0.0625f * kUnit;
  if (lane != 0) return;
  shared.of_copy[copy] = of_copy;
  if constexpr (kStochastic) {
    const uint64_t key = rng_mix(t.stream ^ (static_cast<uint64_t>(step) + kRngGamma));
    shared.keys[copy] = copy == 0 ? key : rng_mix(key);
  }
}
// What the block's warps share of copies, and of rows. `step`, and a row of a thread of the second half: read before.
template <bool kRotate, bool kStochastic>
__device__ __forceinline__ void prepare(const Fp4Tiles& t, const MatrixTile& at, float step, const RowDraws& row,
                                        Fp4Shared& shared, Fp4Draws& draws) {
  if (const int copy = static_cast<int>(threadIdx.x) >> 5; copy < 2) {
    find_factors<kStochastic>(t, copy, __ldcg(t.amax + (kRotate ? copy : 0)), step, shared);
    float* const inverse = (copy == 0 ? t.row_copy : t.column_copy).inverse;
    if (inverse != nullptr && (threadIdx.x & 31) == 0 && at.matrix == 0 && at.row == 0 && at.column == 0)
      *inverse = 1.0f / shared.of_copy[copy];
  }
  if (kStochastic && threadIdx.x >= 128) draws.rows[threadIdx.x - 128] = row;
  __syncthreads();
}

// Square blocks are rounded to nearest and not rotated.
template <bool kSquare, bool kRotate, bool kStochastic>
__global__ void __launch_bounds__(256, kSquare ? 4 : 3) fp4_tiles_kernel(Fp4Tiles t, const bf16* x) {
  static_assert(!kSquare || (!kRotate && !kStochastic));
  __shared__ Fp4Shared shared;
  __shared__ Fp4Draws draws;
  const Fp4Place place = fp4_place();
  // The last first: L2 still has what the pass before read at its end. Matrices that are rotated are not stacked.
  const dim3 block(gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y, kRotate ? 0 : gridDim.z - 1 - blockIdx.z);
  const MatrixTile at = block_tile_at(block);
  uint2 lines[16];
  load_tile<true>(t, x, at, place, lines);
  if constexpr (kSquare) {  // others are bound by instructions
    const unsigned tile = block.y * gridDim.x + block.x, ahead = tile - t.resident;
    if (tile >= t.resident) fetch_ahead(t, x, block_tile_at({ahead % gridDim.x, ahead / gridDim.x, block.z}));
  }
  float step = 0.0f;
  RowDraws row;
  if constexpr (kStochastic) {
    step = t.record[StepRecord::kStep];
    if (threadIdx.x >= 128) row.find(t, at, static_cast<int>(threadIdx.x) - 128);
  }
  wait_for_launch_before();  // has the magnitudes
  prepare<kRotate, kStochastic>(t, at, step, row, shared, draws);
  if constexpr (kStochastic) draws.draw(shared.keys[0], place);
  uint32_t words[8];
  find_rows<kSquare, kStochastic>(place, lines, draws, shared, words);
  write_rows(t, at, place, shared);
  if constexpr (kSquare) {
    turn_squares(place, words, shared);
  } else {
    // Unpacked values of the rows do not stay: there are no registers for them.
#pragma unroll
    for (uint2& l : lines) asm volatile("" : "+r"(l.x), "+r"(l.y));
    if constexpr (kStochastic) draws.draw(shared.keys[1], place);
    turn_columns<kRotate, kStochastic>(t, place, lines, draws, shared);
  }
  __syncthreads();
  write_scales<kSquare>(t, at, shared);
  write_turned_fp4(t, at, shared);
}

}  // namespace mbb::trainer::cuda
