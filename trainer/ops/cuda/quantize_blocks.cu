// Block quantization. What block_tile_kernel.cuh and fp4_tile_kernel.cuh do not take: a block of threads takes 128 x
// 128 elements into shared memory and writes both copies from there, lines of the one along rows and of the other along
// columns. Tiles do not cross from one stacked matrix to the next.
#include <algorithm>
#include <type_traits>

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/block_tile_kernel.cuh"
#include "trainer/ops/cuda/fp4_tile_kernel.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kTile = 128, kPitch = kTile + 1, kThreads = 256, kWarps = kThreads / 32;
constexpr int kPieces = kTile / 32;  // elements of a line a thread has: lane, lane + 32, ...
constexpr int kHadamard = 16;
constexpr int kSharedBytes = kTile * kPitch * 4;
// So many tiles that gathering lines' scales is worth a second kernel; where fewer, so many that values and codes need
// not stay in L2: it does not hold them for who reads them next.
constexpr int64_t kManyTiles = 2560, kLeavingTiles = 2048;

enum class Code : uint8_t { kE4M3, kE5M2, kE2M1 };

struct Args {
  int64_t rows, cols, stack;  // `stack` matrices of rows x cols
  Code code;
  BlockRule rule;
  bool square, rotate, stochastic;
  uint32_t signs;
  float turn[kHadamard];  // a quarter with these signs
  BlockCopy row_copy, column_copy;
  const float* amax;  // of both copies
  uint64_t stream;
  const float* record;
  const int32_t* samples;
  int64_t batch;
};

// NaN has the largest bits of all magnitudes, so that it wins.
__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(fabsf(x));
}

// A line of a matrix in a copy: its number, where this tile's part begins, how long lines are; and where in the copy
// its codes and its scales begin.
struct Line {
  int64_t number, first, inner;
  bool of_columns;
  int64_t codes, scales;
};

__device__ __forceinline__ uint8_t code_of(const Args& a, float value, const Line& line, int64_t at) {
  if (a.code == Code::kE4M3) return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  if (a.code == Code::kE5M2) return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
  if (!a.stochastic) return to_e2m1(value);
  const int64_t token = line.of_columns ? at : line.number, column = line.of_columns ? line.number : at;
  uint64_t key = rng_mix(a.stream ^ (static_cast<uint64_t>(a.record[StepRecord::kStep]) + kRngGamma));
  if (line.of_columns) key = rng_mix(key);
  const PhiloxBlock words = RandomStream(key).block(
      static_cast<uint64_t>(a.samples[token % a.batch]),
      static_cast<uint64_t>(token / a.batch * ((a.cols + 15) / 16) + column / 16), kRoundingRounds);
  return to_e2m1_stochastic(value, nine_bits(words, static_cast<int>(column % 16)));
}

// A warp writes its line's codes and scales. `squares`: bits of the amax of the tile's square blocks of this line.
template <int kBlock>
__device__ __forceinline__ void write_line(const Args& a, const float (&v)[kPieces], const Line& line,
                                           const BlockCopy& to, float of_copy, const uint32_t* squares,
                                           int square_step) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  uint32_t bits[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    bits[i] = magnitude_bits(v[i]);
    if (a.square) continue;
#pragma unroll
    for (int offset = (kBlock < 32 ? kBlock : 32) / 2; offset > 0; offset /= 2)
      bits[i] = max(bits[i], __shfl_xor_sync(0xffffffffu, bits[i], offset));
  }
  if constexpr (kBlock == kTile) {
    const uint32_t all = max(max(bits[0], bits[1]), max(bits[2], bits[3]));
#pragma unroll
    for (int i = 0; i < kPieces; ++i) bits[i] = all;
  }
  BlockFactor f{};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int in_tile = lane + 32 * i;
    const int64_t at = line.first + in_tile;
    if (i == 0 || kBlock < kTile)
      f = block_factor(a.rule, __uint_as_float(a.square ? squares[in_tile / kBlock * square_step] : bits[i]), of_copy);
    if (in_tile % kBlock == 0 && at < line.inner && (!a.square || line.number % kBlock == 0))
      store_scale(a.rule, to.scales, line.scales + at / kBlock, f.kept);
    const uint8_t code = code_of(a, v[i] * f.factor, line, at);
    if (a.code != Code::kE2M1) {
      if (at < line.inner) static_cast<uint8_t*>(to.q)[line.codes + at] = code;
      continue;
    }
    const auto next = static_cast<uint8_t>(__shfl_down_sync(0xffffffffu, static_cast<uint32_t>(code), 1));
    if (at < line.inner && lane % 2 == 0)
      static_cast<uint8_t*>(to.q)[(line.codes + at) / 2] = static_cast<uint8_t>(code | (next << 4));
  }
}

// Sixteen values v of a line become H · D · v / 4, with the host's sums.
__device__ __forceinline__ void rotate_piece(float& value, uint32_t signs, bool whole) {
  const uint32_t mine = threadIdx.x % kHadamard;
  float sum = value * ((signs >> mine & 1u) != 0 ? -0.25f : 0.25f);
#pragma unroll
  for (uint32_t bit = 1; bit < kHadamard; bit *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, sum, bit);
    sum = (mine & bit) != 0 ? other - sum : sum + other;
  }
  if (whole) value = sum;
}

template <typename T, int kBlock>
__global__ void __launch_bounds__(kThreads) quantize_blocks_kernel(Args a, const T* x) {
  extern __shared__ float tile[];
  constexpr int kAcross = kTile / kBlock;
  __shared__ uint32_t squares[kAcross * kAcross];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile, matrix = blockIdx.z;
  x += matrix * a.rows * a.cols;
  if (a.square)
    for (int i = static_cast<int>(threadIdx.x); i < kAcross * kAcross; i += kThreads) squares[i] = 0;
  for (int r = warp; r < kTile; r += kWarps)
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t row = row0 + r, column = column0 + lane + 32 * i;
      tile[r * kPitch + lane + 32 * i] = row < a.rows && column < a.cols ? to_float(x[row * a.cols + column]) : 0.0f;
    }
  __syncthreads();
  if (a.square) {
    for (int r = warp; r < kTile; r += kWarps)
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        constexpr int kGroup = kBlock < 32 ? kBlock : 32;
        uint32_t bits = magnitude_bits(tile[r * kPitch + lane + 32 * i]);
#pragma unroll
        for (int offset = kGroup / 2; offset > 0; offset /= 2)
          bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, offset));
        if (lane % kGroup == 0) atomicMax(&squares[r / kBlock * kAcross + (lane + 32 * i) / kBlock], bits);
      }
    __syncthreads();
  }
  const bool with_inverse = a.rule.scale == BlockScale::kE4M3;
  const float of_rows = with_inverse ? fp4_tensor_scale(a.amax[0]) : 1.0f;
  const float of_columns = with_inverse ? fp4_tensor_scale(a.amax[1]) : 1.0f;
  if (with_inverse && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) {
    if (a.row_copy.inverse != nullptr) *a.row_copy.inverse = 1.0f / of_rows;
    if (a.column_copy.inverse != nullptr) *a.column_copy.inverse = 1.0f / of_columns;
  }
  const int64_t row_parts = (a.rows + kBlock - 1) / kBlock, column_parts = (a.cols + kBlock - 1) / kBlock;
  float v[kPieces];
  for (int r = warp; a.row_copy.q != nullptr && r < kTile && row0 + r < a.rows; r += kWarps) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) v[i] = tile[r * kPitch + lane + 32 * i];
    const int64_t row = row0 + r;
    const int64_t scale_line = a.square ? matrix * row_parts + row / kBlock : matrix * a.rows + row;
    const Line line{row, column0, a.cols, false, (matrix * a.rows + row) * a.cols, scale_line * column_parts};
    write_line<kBlock>(a, v, line, a.row_copy, of_rows, squares + r / kBlock * kAcross, 1);
  }
  for (int c = warp; a.column_copy.q != nullptr && c < kTile && column0 + c < a.cols; c += kWarps) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      v[i] = tile[(lane + 32 * i) * kPitch + c];
      const int64_t group = row0 + (lane + 32 * i) / kHadamard * kHadamard;
      if (a.rotate) rotate_piece(v[i], a.signs, group + kHadamard <= a.rows);
    }
    const int64_t column = column0 + c, scale_line = a.square ? column / kBlock : column;
    const Line line{
        column, row0, a.rows, true, (column * a.stack + matrix) * a.rows, (scale_line * a.stack + matrix) * row_parts};
    write_line<kBlock>(a, v, line, a.column_copy, of_columns, squares + c / kBlock, kAcross);
  }
}

// amax of both copies: a thread takes 16 rows of a column, and the grid goes down first: it has room for few columns
// only. Stacked matrices, which are not rotated, are one here.
template <typename T>
__global__ void copies_amax_kernel(Args a, const T* x, float* amax) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x, row0 = int64_t{blockIdx.x} * kHadamard;
  const int64_t rows = a.stack * a.rows;
  uint32_t plain = 0, turned = 0;
  if (column < a.cols) {
    float v[kHadamard];
#pragma unroll
    for (int j = 0; j < kHadamard; ++j) {
      v[j] = row0 + j < rows ? to_float(x[(row0 + j) * a.cols + column]) : 0.0f;
      plain = max(plain, magnitude_bits(v[j]));
    }
    turned = plain;
    if (a.rotate && row0 + kHadamard <= rows) {
      turned = 0;
      rotate_column(a.turn, v);
#pragma unroll
      for (int i = 0; i < kHadamard; ++i) turned = max(turned, magnitude_bits(v[i]));
    }
  }
  plain = __reduce_max_sync(0xffffffffu, plain);
  turned = __reduce_max_sync(0xffffffffu, turned);
  if ((threadIdx.x & 31) != 0) return;
  atomicMax(reinterpret_cast<unsigned int*>(amax), plain);
  atomicMax(reinterpret_cast<unsigned int*>(amax + 1), turned);
}

unsigned parts(int64_t extent, int64_t part) {
  return static_cast<unsigned>((extent + part - 1) / part);
}

template <typename T, int kBlock>
Status launch_tiles(const Args& a, const T* x, cudaStream_t stream) {
  const auto kernel = quantize_blocks_kernel<T, kBlock>;
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "block quantization"));
  kernel<<<dim3(parts(a.cols, kTile), parts(a.rows, kTile), static_cast<unsigned>(a.stack)), kThreads, kSharedBytes,
           stream>>>(a, x);
  return launched("quantize_blocks");
}

template <typename T>
Status run(const Args& a, int block, float* amax, const T* x, cudaStream_t stream) {
  if (a.rule.scale == BlockScale::kE4M3) {
    MB_TRY(ok(cudaMemsetAsync(amax, 0, 8, stream), "clearing amax"));
    const dim3 grid(parts(a.stack * a.rows, kHadamard), parts(a.cols, 128));
    copies_amax_kernel<T><<<grid, 128, 0, stream>>>(a, x, amax);
    MB_TRY(launched("quantize_blocks_amax"));
  }
  switch (block) {
    case 16: return launch_tiles<T, 16>(a, x, stream);
    case 32: return launch_tiles<T, 32>(a, x, stream);
    case 128: return launch_tiles<T, 128>(a, x, stream);
    default: break;
  }
  return fail(ErrorCode::kUnavailable, "CUDA: quantization in blocks of " + std::to_string(block),
              "blocks are 16, 32 or 128 elements");
}

// Whether tiles stay in registers: FP8 of bf16 in lines or squares of 128 with scales f32, or MX, or NVFP4; 16-byte
// vectors.
bool takes_tiles(const QuantizeBlocks& q, const void* x) {
  const QuantizeBlocksAttrs& a = *q.attrs;
  const bool f32_scales = a.scale == BlockScale::kF32 || a.scale == BlockScale::kPowerOfTwo;
  const bool blocks = (a.block == 128 && f32_scales) || (a.block == 32 && a.scale == BlockScale::kE8M0 && !a.square);
  const bool fp8 = blocks && a.to != DType::kE2M1 && !a.rotate;
  const bool fp4 = a.to == DType::kE2M1 && a.block == 16 && a.scale == BlockScale::kE4M3 &&
                   !(a.square && (a.rotate || a.stochastic)) && q.batch < int64_t{1} << 31 &&
                   q.shape.rows < int64_t{1} << 31 && (a.stack == 1 || !a.rotate) &&
                   q.shape.rows * q.shape.cols < int64_t{1} << 34 &&                   // random draws by 32 bits
                   std::max(a.stack * q.shape.rows, q.shape.cols) < int64_t{1} << 24;  // and offsets in a tile
  const auto addresses =
      reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(q.rows.q) | reinterpret_cast<uintptr_t>(q.columns.q);
  return (fp8 || fp4) && q.from == Element::kBf16 && q.shape.rows % 16 == 0 && q.shape.cols % 8 == 0 &&
         addresses % 16 == 0;
}

BlockTiles tiles_of(const Args& a) {
  return {
      a.rows, a.cols,     a.stack,      static_cast<int>(parts(a.cols, kTile)), static_cast<int>(parts(a.rows, kTile)),
      a.rule, a.row_copy, a.column_copy};
}
dim3 grid_of(const BlockTiles& t) {
  return {static_cast<unsigned>(t.across), static_cast<unsigned>(t.down), static_cast<unsigned>(t.stack)};
}

Status run_fp4_tiles(const Args& a, float* amax, const bf16* x, const Launch& launch) {
  Fp4Tiles t{tiles_of(a), {}, a.stream, a.record, a.samples, a.batch, amax, 4u * launch.sms.count};
  std::copy_n(a.turn, kHadamard, t.turn);
  MB_TRY(ok(cudaMemsetAsync(amax, 0, 8, launch.stream), "clearing amax"));
  if (a.rotate) {
    fp4_amax_kernel<<<grid_of(t), 256, 0, launch.stream>>>(t, x, amax);
    MB_TRY(launched("quantize_blocks"));
  } else {
    MB_TRY(amax_of(Element::kBf16, x, a.stack * a.rows * a.cols, amax, launch));
  }
  const auto kernel =
      a.square   ? fp4_tiles_kernel<true, false, false>
      : a.rotate ? (a.stochastic ? fp4_tiles_kernel<false, true, true> : fp4_tiles_kernel<false, true, false>)
                 : (a.stochastic ? fp4_tiles_kernel<false, false, true> : fp4_tiles_kernel<false, false, false>);
  return start_early("quantize_blocks", kernel, grid_of(t), 256, launch.stream, t, x);
}

Status run_tiles(const Args& a, int block, uint32_t* words, const bf16* x, cudaStream_t stream) {
  BlockTiles t = tiles_of(a);
  t.words = words;
  const auto start = [&](auto kind) {
    constexpr auto kKind = decltype(kind)::value;
    const auto lines = [&](auto leaving) {
      constexpr bool kLeaving = decltype(leaving)::value;
      return block == 32 ? block_lines_kernel<kKind, 32, kLeaving> : block_lines_kernel<kKind, 128, kLeaving>;
    };
    const bool leaving = words == nullptr && t.stack * t.down * t.across >= kLeavingTiles;
    const auto kernel = a.square  ? block_squares_kernel<kKind>
                        : leaving ? lines(std::true_type{})
                                  : lines(std::false_type{});
    kernel<<<grid_of(t), 256, 0, stream>>>(t, x);
    return launched("quantize_blocks");
  };
  MB_TRY(a.code == Code::kE5M2 ? start(std::integral_constant<__nv_fp8_interpretation_t, __NV_E5M2>{})
                               : start(std::integral_constant<__nv_fp8_interpretation_t, __NV_E4M3>{}));
  if (a.square || words == nullptr) return {};
  const auto kernel = block == 32 ? block_scales_kernel<32> : block_scales_kernel<128>;
  const auto down = static_cast<unsigned>(t.down), across = static_cast<unsigned>(t.across);
  const dim3 grid(down * parts(t.across, 32) + across * parts(t.down, 32), static_cast<unsigned>(t.stack));
  return start_early("quantize_blocks", kernel, grid, 256, stream, t);
}

}  // namespace

int64_t quantize_blocks_workspace(const QuantizeBlocks& q, const void* x) {
  if (q.attrs->scale == BlockScale::kE4M3) return 8;  // amax of both copies
  const int64_t tiles = q.attrs->stack * parts(q.shape.rows, kTile) * parts(q.shape.cols, kTile);
  if (q.attrs->square || tiles < kManyTiles || !takes_tiles(q, x)) return 0;
  return tiles * kTileWords * int64_t{sizeof(uint32_t)};
}

Status quantize_blocks(const QuantizeBlocks& q, const void* x, const Launch& launch) {
  const QuantizeBlocksAttrs& attrs = *q.attrs;
  const bool four_bits = attrs.to == DType::kE2M1;
  if (four_bits && (q.shape.rows % 2 != 0 || q.shape.cols % 2 != 0))
    return fail(ErrorCode::kUnavailable, "CUDA: E2M1 codes of a tensor with an odd number of rows or columns",
                "make them even, or run on the CPU: --device cpu");
  Args a{};
  a.rows = q.shape.rows, a.cols = q.shape.cols, a.stack = attrs.stack;
  a.code = four_bits ? Code::kE2M1 : attrs.to == DType::kE5M2 ? Code::kE5M2 : Code::kE4M3;
  a.square = attrs.square, a.rotate = attrs.rotate, a.stochastic = attrs.stochastic && four_bits;
  a.signs = static_cast<uint32_t>(attrs.rotate_signs);
  for (int j = 0; j < kHadamard; ++j) a.turn[j] = (a.signs >> j & 1u) != 0 ? -0.25f : 0.25f;
  a.rule = {attrs.scale, attrs.to == DType::kE5M2 ? 57344.0f : 448.0f,
            q.from == Element::kBf16 ? 3.3895313892515355e38f : 3.402823466e38f};
  a.row_copy = q.rows, a.column_copy = q.columns;
  auto* const amax = static_cast<float*>(q.workspace);
  a.amax = amax;
  a.stream = static_cast<uint64_t>(attrs.stream);
  a.record = q.record, a.samples = q.samples, a.batch = q.batch;
  if (takes_tiles(q, x))
    return four_bits ? run_fp4_tiles(a, amax, static_cast<const bf16*>(x), launch)
                     : run_tiles(a, attrs.block, static_cast<uint32_t*>(q.workspace), static_cast<const bf16*>(x),
                                 launch.stream);
  return q.from == Element::kF32 ? run(a, attrs.block, amax, static_cast<const float*>(x), launch.stream)
                                 : run(a, attrs.block, amax, static_cast<const bf16*>(x), launch.stream);
}

}  // namespace mbb::trainer::cuda
