// Grouped matrix products of FP8 codes on Hopper, as grouped_wgmma_kernel.cuh's of bf16: both operands always have the
// reduction innermost, since quantization wrote a turned copy of each.
//
//   fprop y[rows, n] = x * w^T   left x[rows, k],  right w[expert][n, k]
//   dgrad dx[rows, k] = dy * w   left dy[rows, n], right w^T[k, experts * n]
//   wgrad dw[n, k] (+)= dy^T * x left dy^T[n, rows], right x^T[k, rows]
//
// Tensor cores add FP8 products in fewer bits than fp32 has. Unless `kFast`, a step's 128 of the reduction are summed
// by themselves and added to a sum in fp32.
#pragma once

#include "trainer/ops/cuda/grouped_wgmma_kernel.cuh"
#include "trainer/ops/cuda/wgmma_fp8.cuh"

namespace mbb::trainer::cuda {

// Shared memory from `base`: stages of left [128 x 128] and right [columns x 128], then "full" and "empty" barriers.
template <bool kFast>
struct Fp8Stages {
  uint32_t base;
  static constexpr int kColumns = grouped_fp8_columns(kFast), kStages = grouped_fp8_stages(kFast);
  static constexpr int kBytes = grouped_fp8_stage_bytes(kFast);
  __device__ uint32_t left(int stage) const { return base + static_cast<uint32_t>(stage * kBytes); }
  __device__ uint32_t right(int stage) const { return left(stage) + kGroupedRows * kGroupedFp8Depth; }
  __device__ uint32_t full(int stage) const { return base + static_cast<uint32_t>(kStages * kBytes + stage * 16); }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

template <GroupedForm kForm, bool kFast>
__device__ __forceinline__ void fetch_codes(const Fp8Stages<kFast>& map, int stage, const CUtensorMap& left,
                                            const CUtensorMap& right, const ExpertTile& t, int inner) {
  const uint32_t full = map.full(stage);
  if constexpr (kForm == GroupedForm::kWgrad) {
    copy_box(map.left(stage), left, full, t.first + inner, t.at.row);
    copy_box(map.right(stage), right, full, t.first + inner, t.at.column);
  } else {
    copy_box(map.left(stage), left, full, inner, t.first + t.at.row);
    if constexpr (kForm == GroupedForm::kFprop)
      copy_box(map.right(stage), right, full, inner, t.at.column, t.expert);
    else
      copy_box(map.right(stage), right, full, t.expert * t.depth + inner, t.at.column);
  }
}

// Keeps the first `bytes` of 16 in shared memory.
__device__ __forceinline__ void keep_bytes(uint32_t at, int bytes) {
  uint32_t v[4] = {};
  if (bytes > 0) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_word = bytes - i * 4;
      v[i] &= of_word >= 4 ? 0xffffffffu : of_word <= 0 ? 0u : (1u << (of_word * 8)) - 1u;
    }
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Clears what lies behind `valid` of a step's reduction in the rows that warpgroup `group` reads. The other warpgroup
// writes the same bytes.
template <bool kFast>
__device__ __forceinline__ void clear_codes(const Fp8Stages<kFast>& map, int stage, int group, int valid) {
  for (int row = threadIdx.x & 127; row < 64 + map.kColumns; row += 128) {
    const uint32_t at = row < 64 ? map.left(stage) + static_cast<uint32_t>((group * 64 + row) * kGroupedFp8Depth)
                                 : map.right(stage) + static_cast<uint32_t>((row - 64) * kGroupedFp8Depth);
    for (int piece = valid / 16; piece < kGroupedFp8Depth / 16; ++piece)  // where the swizzle put it
      keep_bytes(at + static_cast<uint32_t>((piece ^ (row & 7)) * 16), valid - piece * 16);
  }
  shared_stores_ready();
  warpgroup_meet(1 + group);
}

// Multiplies one tile's 64 rows over all steps into d. A warpgroup without rows only keeps the turn.
template <GroupedForm kForm, bool kFast, bool kLeftE5m2, int kCount, int kStages>
__device__ __forceinline__ void multiply_codes(const Fp8Stages<kFast>& map, TurnOf<kStages>& turn, int group, int depth,
                                               bool active, float (&d)[kCount]) {
  const bool signals = (threadIdx.x & 31) == 0;
  const int steps = (depth + kGroupedFp8Depth - 1) / kGroupedFp8Depth;
  int previous = -1;
  for (int step = 0; step < steps; ++step, turn.next()) {
    barrier_wait(map.full(turn.stage), turn.parity);
    if (!active) {
      if (signals) barrier_arrive(map.empty(turn.stage));
      continue;
    }
    if constexpr (kForm == GroupedForm::kWgrad) {
      const int valid = depth - step * kGroupedFp8Depth;
      if (valid < kGroupedFp8Depth) clear_codes(map, turn.stage, group, valid);
    }
    const uint64_t left =
        operand_at<false>(map.left(turn.stage) + static_cast<uint32_t>(group * 64 * kGroupedFp8Depth));
    const uint64_t right = operand_at<false>(map.right(turn.stage));
    if constexpr (kFast) {
      products_begin();
#pragma unroll
      for (int i = 0; i < kGroupedFp8Depth / 32; ++i)
        multiply_fp8<kLeftE5m2>(d, left + i * operand_step<false>(), right + i * operand_step<false>(), true);
      products_commit();
      products_wait<1>();  // the step before has been read
      if (previous >= 0 && signals) barrier_arrive(map.empty(previous));
      previous = turn.stage;
    } else {
      float part[kCount];
      products_begin();
#pragma unroll
      for (int i = 0; i < kGroupedFp8Depth / 32; ++i)
        multiply_fp8<kLeftE5m2>(part, left + i * operand_step<false>(), right + i * operand_step<false>(), i > 0);
      products_commit();
      products_wait<0>();
      settle(part);
      if (signals) barrier_arrive(map.empty(turn.stage));
#pragma unroll
      for (int i = 0; i < kCount; ++i) d[i] += part[i];
    }
  }
  if constexpr (kFast) {
    products_wait<0>();
    settle(d);
    if (previous >= 0 && signals) barrier_arrive(map.empty(previous));
  }
}

template <GroupedForm kForm, bool kFast, bool kLeftE5m2, typename Out>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                       const __grid_constant__ GroupedWork work, Out* out, bool accumulate) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  using Stages = Fp8Stages<kFast>;
  const Stages map{(shared_address(memory) + 1023u) & ~1023u};
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Stages::kStages; ++s) {
      barrier_init(map.full(s), 1);
      barrier_init(map.empty(s), 8);  // the warps that multiply
    }
    barriers_ready();
  }
  __syncthreads();
  TileWalk<kForm, Stages::kColumns> walk(work);
  ExpertTile tile;
  TurnOf<Stages::kStages> turn;
  if (group == 2) {
    give_registers<40>();
    if (threadIdx.x == 256) {
      prefetch_map(left);
      prefetch_map(right);
      for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x))
        for (int inner = 0; inner < tile.depth; inner += kGroupedFp8Depth, turn.next()) {
          barrier_wait(map.empty(turn.stage), turn.parity ^ 1);
          barrier_expect(map.full(turn.stage), Stages::kBytes);
          fetch_codes<kForm, kFast>(map, turn.stage, left, right, tile, inner);
        }
    }
  } else {
    take_registers<232>();
    const float factor = *work.left_scale * *work.right_scale;
    for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x)) {
      float d[Stages::kColumns / 2] = {};
      const int row0 = tile.at.row + group * 64;
      const bool active = row0 < tile.rows;
      multiply_codes<kForm, kFast, kLeftE5m2>(map, turn, group, tile.depth, active, d);
      if (!active) continue;
#pragma unroll
      for (float& x : d) x *= factor;
      if constexpr (kForm == GroupedForm::kWgrad)
        store_gradient(d, out + int64_t{tile.expert} * work.rows * work.columns, row0, tile.rows, tile.at.column,
                       work.columns, accumulate);
      else
        store_bf16(d, out + int64_t{tile.first} * work.columns, row0, tile.rows, tile.at.column, work.columns);
    }
  }
#endif
}

}  // namespace mbb::trainer::cuda
