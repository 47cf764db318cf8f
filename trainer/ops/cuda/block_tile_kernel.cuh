// FP8 in blocks at the speed of memory: a block of threads keeps a tile of 128 x 128 bf16 values in registers, 8 rows
// of 8 columns a thread, finds what it needs of magnitudes together, and writes both copies from there.
#pragma once

#include "trainer/ops/cuda/block_factor.cuh"
#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/early_launch.cuh"
#include "trainer/ops/cuda/quantize_kernel.cuh"

namespace mbb::trainer::cuda {

struct BlockTiles {
  int64_t rows, cols, stack;  // `stack` matrices, a grid's z each; rows % 16 == 0, cols % 8 == 0
  int across, down;           // tiles of a matrix
  BlockRule rule;             // scales f32, or E8M0 of blocks of 32
  BlockCopy row_copy, column_copy;
  uint32_t* words = nullptr;  // of lines: kTileWords a tile; null: scales are written at once
};

// The grid: a row of tiles after another, matrices.
struct MatrixTile : TileAt {
  int64_t matrix;
};
__device__ __forceinline__ MatrixTile block_tile_at(dim3 block) {
  return {{int64_t{block.y} * 128, int64_t{block.x} * 128}, block.z};
}

// A thread's lines are all inside or all outside; those outside repeat others, which changes no maximum.
template <bool kOnce>
__device__ __forceinline__ void load_tile(const BlockTiles& t, const bf16* x, const MatrixTile& at,
                                          const TilePlace& place, uint4 (&lines)[8]) {
  const int64_t row = min(at.row + place.row, t.rows - 8), column = min(at.column + place.column, t.cols - 8);
  const bf16* const from = x + (at.matrix * t.rows + row) * t.cols + column;
#pragma unroll
  for (int l = 0; l < 8; ++l) lines[l] = load_line<kOnce>(from + l * t.cols);
  __syncwarp();  // no load is put off past the first use of another
}

// codes(l): of the thread's line l.
template <bool kStream, typename Codes>
__device__ __forceinline__ void write_lines(const BlockTiles& t, const MatrixTile& at, const TilePlace& place,
                                            Codes&& codes) {
  const int64_t row = at.row + place.row, column = at.column + place.column;
  if (row >= t.rows || column >= t.cols) return;
  const bool wanted = t.row_copy.q != nullptr;
  uint8_t* const to = static_cast<uint8_t*>(t.row_copy.q) + (at.matrix * t.rows + row) * t.cols + column;
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    const uint2 line = codes(l);
    if (wanted) store_codes<kStream>(to + l * t.cols, line);
  }
}
template <bool kStream>
__device__ __forceinline__ void write_columns(const BlockTiles& t, const uint2 (&codes)[8], const MatrixTile& at,
                                              uint32_t* turned) {
  if (t.column_copy.q == nullptr) return;
  uint8_t* const to = static_cast<uint8_t*>(t.column_copy.q) + at.matrix * t.rows;
  write_turned<1, kStream>(codes, at, t.rows, t.cols, t.stack * t.rows, to, turned);
}

// bf16 magnitudes of blocks of a tile, [part][line].
template <int kBlock>
struct TileTops {
  alignas(16) uint16_t rows[128 / kBlock][128];
  alignas(16) uint16_t columns[8][128];  // of 16 rows each
};

// The largest magnitudes of the thread's lines, over the lanes that share a row's block and the two groups of rows in
// the warp.
template <int kBlock>
__device__ __forceinline__ void find_tops(const uint4 (&lines)[8], const TilePlace& place, TileTops<kBlock>& tops) {
  constexpr uint32_t kMagnitude = 0x7fff7fffu;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  uint32_t of_rows[4], of_columns[4] = {};  // two rows or columns a word
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    uint32_t top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& line = lines[pair * 2 + i];
      const uint32_t words[4] = {line.x & kMagnitude, line.y & kMagnitude, line.z & kMagnitude, line.w & kMagnitude};
#pragma unroll
      for (int w = 0; w < 4; ++w) of_columns[w] = __vmaxu2(of_columns[w], words[w]);
      top[i] = __vmaxu2(__vmaxu2(words[0], words[1]), __vmaxu2(words[2], words[3]));
    }
    of_rows[pair] = __vmaxu2(__byte_perm(top[0], top[1], 0x5410), __byte_perm(top[0], top[1], 0x7632));
#pragma unroll
    for (int offset = kBlock / 16; offset > 0; offset /= 2)
      of_rows[pair] = __vmaxu2(of_rows[pair], __shfl_xor_sync(0xffffffffu, of_rows[pair], offset));
  }
#pragma unroll
  for (uint32_t& top : of_columns) top = __vmaxu2(top, __shfl_xor_sync(0xffffffffu, top, 16));
  if (place.column % kBlock == 0)
    *reinterpret_cast<uint4*>(&tops.rows[place.column / kBlock][place.row]) =
        make_uint4(of_rows[0], of_rows[1], of_rows[2], of_rows[3]);
  if (lane < 16)
    *reinterpret_cast<uint4*>(&tops.columns[warp][place.column]) =
        make_uint4(of_columns[0], of_columns[1], of_columns[2], of_columns[3]);
}

template <int kBlock>
struct TileFactors {
  alignas(16) float rows[128 / kBlock][128], columns[128 / kBlock][128];
};

// A thread has a row or a column of the tile: its blocks' factors. Their scales are a word, f32 or four E8M0.
constexpr int kTileWords = 256;
__device__ __forceinline__ uint32_t* tile_words(const BlockTiles& t, int64_t matrix, int64_t down, int64_t across) {
  return t.words + ((matrix * t.down + down) * t.across + across) * kTileWords;
}
// Of a row or a column of a matrix, in one of the tiles that it goes through.
template <int kBlock>
__device__ __forceinline__ void write_word(const BlockTiles& t, int64_t matrix, bool column, int64_t line, int64_t tile,
                                           uint32_t word) {
  if (line >= (column ? t.cols : t.rows)) return;
  const int64_t inner = column ? t.rows : t.cols, tiles = column ? t.down : t.across;
  const int64_t scale_line = column ? line * t.stack + matrix : matrix * t.rows + line;
  void* const scales = column ? t.column_copy.scales : t.row_copy.scales;
  if (scales == nullptr) return;
  if (kBlock == 128 || (inner % 128 == 0 && reinterpret_cast<uintptr_t>(scales) % 4 == 0)) {
    static_cast<uint32_t*>(scales)[scale_line * tiles + tile] = word;
    return;
  }
  const int64_t parts = (inner + kBlock - 1) / kBlock, part = tile * (128 / kBlock);
#pragma unroll
  for (int i = 0; i < 128 / kBlock; ++i)
    if (part + i < parts)
      static_cast<uint8_t*>(scales)[scale_line * parts + part + i] = static_cast<uint8_t>(word >> i * 8);
}
template <int kBlock>
__device__ __forceinline__ void find_factors(const BlockTiles& t, const MatrixTile& at, const TileTops<kBlock>& tops,
                                             TileFactors<kBlock>& factors) {
  const bool column = threadIdx.x >= 128;
  const int in_tile = static_cast<int>(threadIdx.x) & 127;
  uint32_t kept = 0;
#pragma unroll
  for (int part = 0; part < 128 / kBlock; ++part) {
    uint32_t top = 0;
    if (column) {
#pragma unroll
      for (int i = 0; i < kBlock / 16; ++i) top = max(top, uint32_t{tops.columns[part * (kBlock / 16) + i][in_tile]});
    } else {
      top = tops.rows[part][in_tile];
    }
    const float amax = __uint_as_float(top << 16);
    const BlockFactor f = kBlock == 32 ? e8m0_factor(t.rule, amax) : f32_factor(t.rule, amax);
    (column ? factors.columns : factors.rows)[part][in_tile] = f.factor;
    kept |= f.kept << part * 8;
  }
  const int64_t down = at.row / 128, across = at.column / 128;
  if (t.words != nullptr)
    tile_words(t, at.matrix, down, across)[threadIdx.x] = kept;
  else
    write_word<kBlock>(t, at.matrix, column, (column ? at.column : at.row) + in_tile, column ? down : across, kept);
}

// The words of 32 tiles beside each other go to the scales of the 128 rows they have, or of tiles below each other to
// those of columns: stores of a tile's own few bytes to each line cost a fifth of the time. The grid: all of the rows,
// then all of the columns; matrices. Launched before the tiles are done.
template <int kBlock>
__global__ void __launch_bounds__(256) block_scales_kernel(BlockTiles t) {
  __shared__ uint32_t words[32][129];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int across32 = (t.across + 31) / 32, down32 = (t.down + 31) / 32, of_rows = t.down * across32;
  const auto block = static_cast<int>(blockIdx.x);
  const bool column = block >= of_rows;
  const int tiles = column ? t.down : t.across, tiles32 = column ? down32 : across32;
  const int group = column ? block - of_rows : block, line_tile = group / tiles32;
  const int first = (group - line_tile * tiles32) * 32, count = min(32, tiles - first);
  const int64_t matrix = blockIdx.y;
  wait_for_launch_before();
  for (int i = warp; i < count; i += 8) {
    const uint32_t* const from =
        column ? tile_words(t, matrix, first + i, line_tile) + 128 : tile_words(t, matrix, line_tile, first + i);
#pragma unroll
    for (int l = 0; l < 4; ++l) words[i][l * 32 + lane] = from[l * 32 + lane];
  }
  __syncthreads();
  if (lane >= count) return;
  for (int l = warp; l < 128; l += 8)
    write_word<kBlock>(t, matrix, column, int64_t{line_tile} * 128 + l, first + lane, words[lane][l]);
}

// Codes of values times their factors.
template <__nv_fp8_interpretation_t kKind, typename Factor>
__device__ __forceinline__ uint2 codes_by(const float (&v)[8], Factor&& factor) {
  return make_uint2(pack_fp8<kKind>(v[0] * factor(0), v[1] * factor(1), v[2] * factor(2), v[3] * factor(3)),
                    pack_fp8<kKind>(v[4] * factor(4), v[5] * factor(5), v[6] * factor(6), v[7] * factor(7)));
}

// Blocks of 1 x kBlock along rows, and along columns in the other copy. With kStream values and codes need not stay in
// L2.
template <__nv_fp8_interpretation_t kKind, int kBlock, bool kStream>
__global__ void __launch_bounds__(256, 4) block_lines_kernel(BlockTiles t, const bf16* x) {
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ TileTops<kBlock> tops;
  __shared__ TileFactors<kBlock> factors;
  launch_dependents();
  const TilePlace place = tile_place<1>();
  const MatrixTile at = block_tile_at(blockIdx);
  uint4 lines[8];
  load_tile<kStream>(t, x, at, place, lines);
  find_tops(lines, place, tops);
  __syncthreads();
  find_factors(t, at, tops, factors);
  __syncthreads();
  float of_rows[8], of_columns[8];
  load8(&factors.rows[place.column / kBlock][place.row], of_rows);
  load8(&factors.columns[place.row / kBlock][place.column], of_columns);
  uint2 codes[8];
  write_lines<kStream>(t, at, place, [&](int l) {
    // Not before: values of all lines do not fit the registers.
    asm volatile("" : "+r"(lines[l].x), "+r"(lines[l].y), "+r"(lines[l].z), "+r"(lines[l].w));
    float v[8];
    unpack(lines[l], v);
    codes[l] = codes_by<kKind>(v, [&](int i) { return of_columns[i]; });
    return codes_by<kKind>(v, [&](int) { return of_rows[l]; });
  });
  write_columns<kStream>(t, codes, at, turned);
}

// Blocks of 128 x 128: both copies have the same codes.
template <__nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 4) block_squares_kernel(BlockTiles t, const bf16* x) {
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  const TilePlace place = tile_place<1>();
  const MatrixTile at = block_tile_at(blockIdx);
  uint4 lines[8];
  load_tile<true>(t, x, at, place, lines);
  const uint32_t two = larger(0, lines);
  const uint32_t top = __reduce_max_sync(0xffffffffu, max(two & 0xffffu, two >> 16));
  if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = top;
  __syncthreads();
  const uint32_t amax = __reduce_max_sync(0xffffffffu, tops[threadIdx.x & 7]);
  const BlockFactor f = f32_factor(t.rule, __uint_as_float(amax << 16));
  if (threadIdx.x == 0) {
    const int64_t row = at.row / 128, column = at.column / 128, matrix = at.matrix;
    if (t.row_copy.scales != nullptr)
      static_cast<uint32_t*>(t.row_copy.scales)[(matrix * t.down + row) * t.across + column] = f.kept;
    if (t.column_copy.scales != nullptr)
      static_cast<uint32_t*>(t.column_copy.scales)[(column * t.stack + matrix) * t.down + row] = f.kept;
  }
  uint2 codes[8];
#pragma unroll
  for (int l = 0; l < 8; ++l) codes[l] = codes_of<kKind>(lines[l], f.factor);
  write_lines<false>(t, at, place, [&](int l) { return codes[l]; });
  write_columns<false>(t, codes, at, turned);
}

}  // namespace mbb::trainer::cuda
