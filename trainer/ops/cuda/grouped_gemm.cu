// Grouped matrix products of experts: on Hopper its own kernel (grouped_wgmma.cu), else tensor-core tiles of 128 x 128
// in bf16, and a scalar kernel for anything else.
//
// Expert segments begin at any row and their lengths live on the device, so a block finds its (expert, tile) by walking
// the segments; there are as many blocks as the worst split of the buffer needs, and those past the last tile end.
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/grouped_wgmma.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kTile = 128, kDepth = 32, kStages = 3, kThreads = 256;
// Rows of a tile in shared memory, padded so that ldmatrix meets no bank twice: [128][32] or, transposed, [32][128].
constexpr int kPlainRow = kDepth + 8, kTransposedRow = kTile + 8;
constexpr int kTileElements = kTile * kPlainRow > kDepth* kTransposedRow ? kTile* kPlainRow : kDepth* kTransposedRow;
constexpr int kSharedBytes = kStages * 2 * kTileElements * 2;

struct Segment {        // no initializers: it lies in shared memory
  int expert;           // -1: none
  int64_t first, rows;  // of the expert
  int64_t tile;         // within the expert
};

__device__ __forceinline__ float factor_of(const GroupedGemm& g) {
  return g.a_scale == nullptr ? 1.0f : *g.a_scale * *g.b_scale;
}

// The expert and tile of row tile `index` over all segments; expert -1 past the end. The whole block calls.
__device__ Segment find_segment(const int32_t* segments, int64_t experts, int64_t index) {
  __shared__ Segment found;
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int64_t before = 0;
    if (lane == 0) found.expert = -1;
    __syncwarp();
    for (int64_t base = 0; base < experts; base += 32) {
      const int64_t e = base + lane;
      const int64_t rows = e < experts ? segments[experts + e] : 0;
      const int64_t tiles = (rows + kTile - 1) / kTile;
      int64_t inclusive = tiles;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int64_t left = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += left;
      }
      const int64_t start = before + inclusive - tiles;
      if (index >= start && index < start + tiles) {
        found.expert = static_cast<int>(e);
        found.first = segments[e];
        found.rows = rows;
        found.tile = index - start;
      }
      before += __shfl_sync(0xffffffffu, inclusive, 31);
    }
  }
  __syncthreads();
  return found;
}

// A 128 x 32 (or 32 x 128 when the reduction runs over rows) piece of a row-major matrix into shared memory; what lies
// outside is zero.
template <bool kTransposed>
__device__ __forceinline__ void load_piece(uint32_t to, const bf16* from, int64_t stride, int64_t row0, int64_t rows,
                                           int64_t column0, int64_t columns) {
  constexpr int kChunks = kTransposed ? kTile / 8 : kDepth / 8, kRow = kTransposed ? kTransposedRow : kPlainRow;
#pragma unroll
  for (int i = 0; i < kTile * kDepth / 8 / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
    const bool valid = row0 + row < rows && column0 + chunk * 8 < columns;
    const bf16* source = valid ? from + (row0 + row) * stride + column0 + chunk * 8 : from;
    copy16_async(to + static_cast<uint32_t>((row * kRow + chunk * 8) * 2), source, valid);
  }
}

// An operand: element (outer, inner) of the product's reduction `inner` lies at row outer (plain) or row inner
// (transposed).
struct Piece {
  const bf16* data;
  int64_t stride;
  int64_t outer, inner;  // extents
};

template <bool kTransposed>
__device__ __forceinline__ void load_operand(uint32_t to, const Piece& p, int64_t outer0, int64_t inner0) {
  if constexpr (kTransposed)
    load_piece<true>(to, p.data, p.stride, inner0, p.inner, outer0, p.outer);
  else
    load_piece<false>(to, p.data, p.stride, outer0, p.outer, inner0, p.inner);
}

// Fragments of A for 16 rows from `outer` and 16 of the reduction from `inner`.
template <bool kTransposed>
__device__ __forceinline__ void fragment_a(uint32_t (&r)[4], uint32_t tile, int outer, int inner, int lane) {
  if constexpr (kTransposed) {
    const int row = inner + (lane & 7) + ((lane >> 4) << 3), column = outer + ((lane >> 3) & 1) * 8;
    load_matrix4_transposed(r, tile + static_cast<uint32_t>((row * kTransposedRow + column) * 2));
  } else {
    const int row = outer + (lane & 15), column = inner + (lane >> 4) * 8;
    load_matrix4(r, tile + static_cast<uint32_t>((row * kPlainRow + column) * 2));
  }
}
// Fragments of B for 16 columns from `outer` (two mma) and 16 of the reduction: {b0, b1} of the first, then the second.
template <bool kTransposed>
__device__ __forceinline__ void fragment_b(uint32_t (&r)[4], uint32_t tile, int outer, int inner, int lane) {
  if constexpr (kTransposed) {
    const int row = inner + (lane & 15), column = outer + (lane >> 4) * 8;
    load_matrix4_transposed(r, tile + static_cast<uint32_t>((row * kTransposedRow + column) * 2));
  } else {
    const int row = outer + (lane & 7) + ((lane >> 4) << 3), column = inner + ((lane >> 3) & 1) * 8;
    load_matrix4(r, tile + static_cast<uint32_t>((row * kPlainRow + column) * 2));
  }
}

// acc += A * B over the whole reduction, for the 64 x 32 part of this warp (2 x 4 warps).
template <bool kATransposed, bool kBTransposed>
__device__ void multiply_tile(const Piece& a, const Piece& b, int64_t a0, int64_t b0, float (&acc)[4][4][4]) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = shared_address(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warp_row = (warp >> 2) * 64,
            warp_column = (warp & 3) * 32;
  const int64_t steps = (a.inner + kDepth - 1) / kDepth;
  const auto stage = [&](int64_t step) { return base + static_cast<uint32_t>(step % kStages * 2 * kTileElements * 2); };
  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      load_operand<kATransposed>(stage(step), a, a0, step * kDepth);
      load_operand<kBTransposed>(stage(step) + kTileElements * 2, b, b0, step * kDepth);
    }
    copies_commit();
  };
  for (int s = 0; s < kStages - 1; ++s) fetch(s);
  for (int64_t step = 0; step < steps; ++step) {
    copies_wait<kStages - 2>();
    __syncthreads();
    fetch(step + kStages - 1);
    const uint32_t tile_a = stage(step), tile_b = tile_a + kTileElements * 2;
#pragma unroll
    for (int inner = 0; inner < kDepth; inner += 16) {
      uint32_t fa[4][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment_a<kATransposed>(fa[i], tile_a, warp_row + i * 16, inner, lane);
#pragma unroll
      for (int j = 0; j < 2; ++j) fragment_b<kBTransposed>(fb[j], tile_b, warp_column + j * 16, inner, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  copies_wait<0>();
}

// visit(row, column, first value, second value) of the 128 x 128 tile, two neighbouring columns at a time.
template <typename Visit>
__device__ void for_results(const float (&acc)[4][4][4], Visit&& visit) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        visit((warp >> 2) * 64 + i * 16 + half * 8 + (lane >> 2), (warp & 3) * 32 + j * 8 + (lane & 3) * 2,
              acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
}

// y rows of an expert = x rows * w: w is [out, in] (fprop) or, transposed, [in, out] (dgrad).
template <bool kWeightTransposed>
__global__ void __launch_bounds__(kThreads)
    grouped_rows_kernel(GroupedGemm g, const bf16* x, const bf16* w, bf16* y, int64_t in, int64_t out) {
  const Segment s = find_segment(g.segments, g.experts, blockIdx.y);
  if (s.expert < 0) return;
  float acc[4][4][4] = {};
  const int64_t row0 = s.tile * kTile, column0 = int64_t{blockIdx.x} * kTile;
  const Piece a{x + s.first * in, in, s.rows, in};
  const Piece b{w + s.expert * g.n * g.k, g.k, out, in};
  multiply_tile<false, kWeightTransposed>(a, b, row0, column0, acc);
  const float factor = factor_of(g);
  for_results(acc, [&](int row, int column, float first, float second) {
    if (row0 + row >= s.rows || column0 + column >= out) return;
    *reinterpret_cast<uint32_t*>(y + (s.first + row0 + row) * out + column0 + column) =
        pack_bf16(factor * first, factor * second);
  });
}

__global__ void __launch_bounds__(kThreads)
    grouped_wgrad_kernel(GroupedGemm g, const bf16* dy, const bf16* x, float* dw, bool accumulate) {
  const int64_t expert = blockIdx.z, first = g.segments[expert], rows = g.segments[g.experts + expert];
  float acc[4][4][4] = {};
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile;
  multiply_tile<true, true>({dy + first * g.n, g.n, g.n, rows}, {x + first * g.k, g.k, g.k, rows}, row0, column0, acc);
  float* to = dw + expert * g.n * g.k;
  const float factor = factor_of(g);
  for_results(acc, [&](int row, int column, float a, float b) {
    if (row0 + row >= g.n || column0 + column >= g.k) return;
    auto* at = reinterpret_cast<float2*>(to + (row0 + row) * g.k + column0 + column);
    const float2 old = accumulate ? *at : make_float2(0.0f, 0.0f);
    *at = make_float2(old.x + factor * a, old.y + factor * b);
  });
}

__global__ void one_expert_kernel(const int32_t* segments, int experts, int only, int32_t* alone) {
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    alone[e] = segments[e];
    alone[experts + e] = e == only ? segments[experts + e] : 0;
  }
}

// Element (r, c) of y = sum over i of x[r, i] * w[expert of r][c, i] (or [i, c]).
template <typename T, bool kWeightTransposed>
__global__ void any_rows_kernel(GroupedGemm g, const T* x, const T* w, T* y, int64_t in, int64_t out) {
  const int64_t row = blockIdx.x;
  int64_t expert = -1;
  for (int64_t e = 0; e < g.experts; ++e)
    if (row >= g.segments[e] && row < int64_t{g.segments[e]} + g.segments[g.experts + e]) expert = e;
  if (expert < 0 && g.keep) return;
  for (int64_t c = threadIdx.x; c < out; c += blockDim.x) {
    float sum = 0.0f;
    if (expert >= 0)
      for (int64_t i = 0; i < in; ++i)
        sum += to_float(x[row * in + i]) *
               to_float(w[expert * g.n * g.k + (kWeightTransposed ? i * g.k + c : c * g.k + i)]);
    y[row * out + c] = from_float<T>(factor_of(g) * sum);
  }
}

template <typename T>
__global__ void any_wgrad_kernel(GroupedGemm g, const T* dy, const T* x, float* dw, bool accumulate) {
  const int64_t expert = blockIdx.y, row = blockIdx.x, first = g.segments[expert];
  const int64_t end = first + g.segments[g.experts + expert];
  for (int64_t c = threadIdx.x; c < g.k; c += blockDim.x) {
    float sum = 0.0f;
    for (int64_t r = first; r < end; ++r) sum += to_float(dy[r * g.n + row]) * to_float(x[r * g.k + c]);
    sum *= factor_of(g);
    float* to = dw + (expert * g.n + row) * g.k + c;
    *to = accumulate ? *to + sum : sum;
  }
}

bool on_tensor_cores(const GroupedGemm& g, const void* a, const void* b, const void* c) {
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c);
  return g.element == Element::kBf16 && g.n % 8 == 0 && g.k % 8 == 0 && all % 16 == 0;
}

unsigned tiles(int64_t extent) {
  return static_cast<unsigned>((extent + kTile - 1) / kTile);
}

template <typename Kernel>
Status allow(Kernel kernel) {
  return ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "grouped GEMM");
}

template <bool kWeightTransposed>
Status rows_product(const char* kernel, const GroupedGemm& g, const void* x, const void* w, void* y, int64_t in,
                    int64_t out, const Launch& launch) {
  if (g.rows == 0) return {};
  if (grouped_on_hopper(g, {x, w, y}))
    return grouped_wgmma(kWeightTransposed ? GroupedForm::kDgrad : GroupedForm::kFprop, g, x, w, y, false, launch);
  if (on_tensor_cores(g, x, w, y)) {
    if (!g.keep)
      MB_TRY(ok(cudaMemsetAsync(y, 0, static_cast<size_t>(g.rows * out * 2), launch.stream), "clearing expert rows"));
    MB_TRY(allow(grouped_rows_kernel<kWeightTransposed>));
    // Every expert may end with a part of a tile.
    const dim3 grid(tiles(out), static_cast<unsigned>(g.rows / kTile + g.experts));
    grouped_rows_kernel<kWeightTransposed><<<grid, kThreads, kSharedBytes, launch.stream>>>(
        g, static_cast<const bf16*>(x), static_cast<const bf16*>(w), static_cast<bf16*>(y), in, out);
    return launched(kernel);
  }
  const auto grid = static_cast<unsigned>(g.rows);
  if (g.element == Element::kF32)
    any_rows_kernel<float, kWeightTransposed><<<grid, 128, 0, launch.stream>>>(
        g, static_cast<const float*>(x), static_cast<const float*>(w), static_cast<float*>(y), in, out);
  else
    any_rows_kernel<bf16, kWeightTransposed><<<grid, 128, 0, launch.stream>>>(
        g, static_cast<const bf16*>(x), static_cast<const bf16*>(w), static_cast<bf16*>(y), in, out);
  return launched(kernel);
}

}  // namespace

Status one_expert(const int32_t* segments, int64_t experts, int64_t only, int32_t* alone, const Launch& launch) {
  one_expert_kernel<<<1, 128, 0, launch.stream>>>(segments, static_cast<int>(experts), static_cast<int>(only), alone);
  return launched("one_expert");
}

Status grouped_fprop(const GroupedGemm& g, const void* x, const void* w, void* y, const Launch& launch) {
  return rows_product<false>("grouped_fprop", g, x, w, y, g.k, g.n, launch);
}

Status grouped_dgrad(const GroupedGemm& g, const void* dy, const void* w, void* dx, const Launch& launch) {
  return rows_product<true>("grouped_dgrad", g, dy, w, dx, g.n, g.k, launch);
}

Status grouped_wgrad(const GroupedGemm& g, const void* dy, const void* x, void* to, bool accumulate,
                     const Launch& launch) {
  if (grouped_on_hopper(g, {dy, x, to})) return grouped_wgmma(GroupedForm::kWgrad, g, dy, x, to, accumulate, launch);
  if (g.gradient != Element::kF32)
    return fail(ErrorCode::kBadArgument, "grouped_wgrad: bf16 gradients are Hopper's kernel's alone");
  auto* const dw = static_cast<float*>(to);
  if (on_tensor_cores(g, dy, x, dw)) {
    MB_TRY(allow(grouped_wgrad_kernel));
    const dim3 grid(tiles(g.k), tiles(g.n), static_cast<unsigned>(g.experts));
    grouped_wgrad_kernel<<<grid, kThreads, kSharedBytes, launch.stream>>>(g, static_cast<const bf16*>(dy),
                                                                          static_cast<const bf16*>(x), dw, accumulate);
    return launched("grouped_wgrad");
  }
  const dim3 grid(static_cast<unsigned>(g.n), static_cast<unsigned>(g.experts));
  if (g.element == Element::kF32)
    any_wgrad_kernel<float><<<grid, 128, 0, launch.stream>>>(g, static_cast<const float*>(dy),
                                                             static_cast<const float*>(x), dw, accumulate);
  else
    any_wgrad_kernel<bf16>
        <<<grid, 128, 0, launch.stream>>>(g, static_cast<const bf16*>(dy), static_cast<const bf16*>(x), dw, accumulate);
  return launched("grouped_wgrad");
}

}  // namespace mbb::trainer::cuda
