// RMSNorm to FP8 in one launch, where its input does not fit on the chip: some blocks share a strip of 128 rows, a tile
// of it each in turn, and tell each other what they know of its rows before they know the largest magnitude.
#pragma once

#include "trainer/ops/cuda/quantize_once_kernel.cuh"

namespace mbb::trainer::cuda {

// The larger, NaN if either is.
__device__ __forceinline__ float larger_float(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// Of eight values over the 16 lanes of a half warp: the even lanes have one value's result each, of value_of().
template <typename Op>
__device__ __forceinline__ float half_warp(float (&x)[8], Op&& op) {
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (threadIdx.x & half * 2) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float given = upper ? x[i] : x[i + half], own = upper ? x[i + half] : x[i];
      x[i] = op(own, __shfl_xor_sync(0xffffffffu, given, half * 2));
    }
  }
  return op(x[0], __shfl_xor_sync(0xffffffffu, x[0], 1));
}
__device__ __forceinline__ int value_of_lane() {
  return static_cast<int>(threadIdx.x >> 1 & 7);
}

// What a thread's part of its rows adds to their squares and the largest |x w|.
struct RowSweep {
  float squares[8] = {}, largest[8] = {};
  __device__ __forceinline__ void add(const uint4 (&lines)[8], const bf16* weight) {
    float w[8];
    load8(weight, w);
#pragma unroll
    for (int l = 0; l < 8; ++l) {
      float x[8];
      unpack(lines[l], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        squares[l] = fmaf(x[i], x[i], squares[l]);
        largest[l] = larger_float(largest[l], fabsf(x[i] * w[i]));
      }
    }
  }
  __device__ __forceinline__ float2 of_block_row() {
    const float sum = half_warp(squares, [](float a, float b) { return a + b; });
    return make_float2(sum, half_warp(largest, larger_float));
  }
};

// Launched cooperatively with `parts` blocks a strip; rows and columns divide into tiles. sums: [grid][128].
template <__nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256, 2)
    norm_strips_kernel(NormOnce norm, int64_t rows, int parts, float2* sums, OnceScale by, uint8_t* q, uint8_t* qt) {
  extern __shared__ uint4 waiting[];
  alignas(16) __shared__ uint32_t turned[128 * 32];
  __shared__ uint32_t tops[8];
  __shared__ float rstd[128];
  const auto block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int strip = block / parts, part = block - strip * parts, across = static_cast<int>(norm.cols / 128);
  const StoredTiles of({strip * across + part, parts, (across - part + parts - 1) / parts, across}, norm.x, rows,
                       norm.cols, waiting);
  uint4 keep[2][8];
  RowSweep sweep;
  const auto weight_of = [&](int i) { return norm.weight + of.at<1>(i).column + of.place.column; };
  see_tiles<true>(of, keep, [&](const uint4(&lines)[8], int i) { sweep.add(lines, weight_of(i)); });
  const float2 own = sweep.of_block_row();
  if (thread % 2 == 0) __stcg(sums + block * 128 + of.place.row + value_of_lane(), own);
  cooperative_groups::this_grid().sync();
  float most = 0.0f;
  if (thread < 128) {
    float2 all = make_float2(0.0f, 0.0f);
    for (int p = 0; p < parts; ++p) {
      const float2 of_part = __ldcg(sums + (strip * parts + p) * 128 + thread);
      all.x += of_part.x, all.y = larger_float(all.y, of_part.y);
    }
    rstd[thread] = rsqrtf(all.x * (1.0f / static_cast<float>(norm.cols)) + norm.eps);
    if (part == 0) norm.found_rstd[strip * 128 + thread] = rstd[thread];
    most = rounded<bf16>(all.y * rstd[thread]);  // the largest |x w rstd|, but for roundings of fp32
  }
  const float scale = grid_scale<kKind>(__float_as_uint(most) >> 16, by, tops);
  write_tiles(of, keep, [&](const uint4(&lines)[8], int i) {
    uint4 normed[8];
    float w[8];
    load8(weight_of(i), w);
#pragma unroll
    for (int l = 0; l < 8; ++l) {
      float x[8];
      unpack(lines[l], x);
      const float r = rstd[of.place.row + l];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = x[e] * r * w[e];
      store8(reinterpret_cast<bf16*>(&normed[l]), x);
    }
    write_tile<1, kKind, true>(normed, scale, of.at<1>(i), rows, norm.cols, q, qt, turned);
  });
}

}  // namespace mbb::trainer::cuda
