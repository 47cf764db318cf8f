// Grouped matrix products of FP8 codes on Hopper, as grouped_wgmma_kernel.cuh's of bf16: both operands always have the
// reduction innermost, since quantization wrote a turned copy of each.
//
//   fprop y[rows, n] = x * w^T   left x[rows, k],  right w[expert][n, k]
//   dgrad dx[rows, k] = dy * w   left dy[rows, n], right w^T[k, experts * n]
//   wgrad dw[n, k] (+)= dy^T * x left dy^T[n, rows], right x^T[k, rows]
//
// Tensor cores add FP8 products in fewer bits than fp32 has. Unless kFast, a step's 128 of the reduction are summed by
// themselves and added to a sum in fp32. Under kBlocks that is where scales of 1 x 128 and 128 x 128 multiply: a step
// is a block, so that wgrad, whose blocks do not begin with the experts, begins with the block of its first row.
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

enum class Fp8Sum { kFast, kPlain, kBlocks };

// What a tile's reduction begins with that is not the expert's: of wgrad, down to a block's first row, where lines of
// L2 begin too. From any 16 bytes on, where the copy engine could begin, each step would read twice as many lines.
template <GroupedForm kForm>
__device__ __forceinline__ int head_of(const ExpertTile& t) {
  return kForm == GroupedForm::kWgrad && t.depth > 0 ? t.first % kGroupedFp8Depth : 0;
}

// `inner`: of the reduction, from the tile's head on.
template <GroupedForm kForm, bool kFast>
__device__ __forceinline__ void fetch_codes(const Fp8Stages<kFast>& map, int stage, const CUtensorMap& left,
                                            const CUtensorMap& right, const ExpertTile& t, int head, int inner) {
  const uint32_t full = map.full(stage);
  if constexpr (kForm == GroupedForm::kWgrad) {
    copy_box(map.left(stage), left, full, t.first - head + inner, t.at.row);
    copy_box(map.right(stage), right, full, t.first - head + inner, t.at.column);
  } else {
    copy_box(map.left(stage), left, full, inner, t.first + t.at.row);
    if constexpr (kForm == GroupedForm::kFprop)
      copy_box(map.right(stage), right, full, inner, t.at.column, t.expert);
    else
      copy_box(map.right(stage), right, full, t.expert * t.depth + inner, t.at.column);
  }
}

// Of a word, its first `count` bytes: all from four on.
__device__ __forceinline__ uint32_t first_bytes(int count) {
  return count >= 4 ? 0xffffffffu : count <= 0 ? 0u : (1u << (count * 8)) - 1u;
}

// Keeps bytes [from, past) of 16 in shared memory.
__device__ __forceinline__ void keep_bytes(uint32_t at, int from, int past) {
  uint32_t v[4] = {};
  if (from < 16 && past > 0) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] &= first_bytes(past - i * 4) & ~first_bytes(from - i * 4);
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Clears what lies outside [from, past) of a step's reduction: each warpgroup in its rows of the left operand and in
// half of the right one, which both read. Both come here.
template <bool kFast>
__device__ __forceinline__ void clear_codes(const Fp8Stages<kFast>& map, int stage, int group, int from, int past) {
  constexpr int kHalf = Fp8Stages<kFast>::kColumns / 2;
  for (int row = threadIdx.x & 127; row < 64 + kHalf; row += 128) {
    const int line = row < 64 ? group * 64 + row : group * kHalf + row - 64;
    const uint32_t at =
        (row < 64 ? map.left(stage) : map.right(stage)) + static_cast<uint32_t>(line * kGroupedFp8Depth);
    for (int piece = 0; piece < kGroupedFp8Depth / 16; ++piece)  // where the swizzle put it
      if (piece * 16 < from || piece * 16 + 16 > past)
        keep_bytes(at + static_cast<uint32_t>((piece ^ (line & 7)) * 16), from - piece * 16, past - piece * 16);
  }
  shared_stores_ready();
  warpgroups_meet(1);
}

// Scales of blocks, each across a row of its table: of a line of the left operand, and of a line (wgrad) or of 128
// lines of the right one.
struct BlockScales {
  const float *left = nullptr, *right = nullptr;
  int left_across = 0, right_across = 0;
  int left_lines = 0;       // in the buffer: a tile may reach past them
  int right_of_expert = 0;  // lines (fprop) or places across (dgrad) from one expert's to the next
};

// Of a step: what a thread's two rows are multiplied with and, of wgrad, where its columns find theirs.
template <GroupedForm kForm>
struct StepScales {
  float row[2];
  const float* columns;

  // Before the step's codes are there. `shared`: 128 floats of this warpgroup.
  __device__ StepScales(const BlockScales& s, const ExpertTile& t, int columns_of_result, int group, int step,
                        float* shared)
      : columns(shared) {
    const int thread = static_cast<int>(threadIdx.x & 127);
    const int line = t.at.row + group * 64 + thread / 32 * 16 + (thread & 31) / 4;
    if constexpr (kForm == GroupedForm::kWgrad) {
      const int block = t.first / kGroupedFp8Depth + step;
      for (int half = 0; half < 2; ++half)
        row[half] = s.left[int64_t{min(line + half * 8, s.left_lines - 1)} * s.left_across + block];
      const int column = min(t.at.column + thread, columns_of_result - 1);
      const float scale = s.right[int64_t{column} * s.right_across + block];
      warpgroup_meet(3 + group);  // the step before has been read
      shared[thread] = scale;
      warpgroup_meet(3 + group);
    } else {
      const int of = t.at.column / kGroupedFp8Depth;
      const float right = kForm == GroupedForm::kFprop
                              ? s.right[int64_t{t.expert * s.right_of_expert + of} * s.right_across + step]
                              : s.right[int64_t{of} * s.right_across + t.expert * s.right_of_expert + step];
      for (int half = 0; half < 2; ++half)
        row[half] = right * s.left[int64_t{min(t.first + line + half * 8, s.left_lines - 1)} * s.left_across + step];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void add(float (&d)[kCount], const float (&part)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      float2 column = make_float2(1.0f, 1.0f);
      if constexpr (kForm == GroupedForm::kWgrad)
        column = *reinterpret_cast<const float2*>(columns + j * 8 + (threadIdx.x & 3) * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        d[j * 4 + half * 2] += part[j * 4 + half * 2] * (row[half] * column.x);
        d[j * 4 + half * 2 + 1] += part[j * 4 + half * 2 + 1] * (row[half] * column.y);
      }
    }
  }
};

// A step's products by themselves.
template <bool kFast, bool kLeftE5m2, int kCount>
__device__ __forceinline__ void multiply_stage(const Fp8Stages<kFast>& map, int stage, int group, bool add,
                                               float (&d)[kCount]) {
  const uint64_t left = operand_at<false>(map.left(stage) + static_cast<uint32_t>(group * 64 * kGroupedFp8Depth));
  const uint64_t right = operand_at<false>(map.right(stage));
  products_begin();
#pragma unroll
  for (int i = 0; i < kGroupedFp8Depth / 32; ++i)
    multiply_fp8<kLeftE5m2>(d, left + i * operand_step<false>(), right + i * operand_step<false>(), add || i > 0);
  products_commit();
}

// Multiplies one tile's 64 rows over all steps into d. A warpgroup without rows only keeps the turn.
template <GroupedForm kForm, Fp8Sum kSum, bool kLeftE5m2, bool kFast, int kCount, int kStages>
__device__ __forceinline__ void multiply_codes(const Fp8Stages<kFast>& map, TurnOf<kStages>& turn, int group,
                                               const ExpertTile& tile, int columns, const BlockScales& scales,
                                               float* shared, float (&d)[kCount]) {
  const bool signals = (threadIdx.x & 31) == 0, active = tile.at.row + group * 64 < tile.rows;
  const int head = head_of<kForm>(tile), past = head + tile.depth;
  int previous = -1;
  for (int inner = 0; inner < past; inner += kGroupedFp8Depth, turn.next()) {
    // Whether there is something to multiply.
    const auto begin = [&] {
      barrier_wait(map.full(turn.stage), turn.parity);
      if constexpr (kForm == GroupedForm::kWgrad)
        if (inner < head || inner + kGroupedFp8Depth > past)
          clear_codes(map, turn.stage, group, head - inner, past - inner);
      if (!active && signals) barrier_arrive(map.empty(turn.stage));
      return active;
    };
    const auto sum_alone = [&](float(&part)[kCount]) {
      multiply_stage<kFast, kLeftE5m2>(map, turn.stage, group, false, part);
      products_wait<0>();
      settle(part);
      if (signals) barrier_arrive(map.empty(turn.stage));
    };
    if constexpr (kSum == Fp8Sum::kFast) {
      if (!begin()) continue;
      multiply_stage<kFast, kLeftE5m2>(map, turn.stage, group, true, d);
      products_wait<1>();  // the step before has been read
      if (previous >= 0 && signals) barrier_arrive(map.empty(previous));
      previous = turn.stage;
    } else if constexpr (kSum == Fp8Sum::kPlain) {
      if (!begin()) continue;
      float part[kCount];
      sum_alone(part);
#pragma unroll
      for (int i = 0; i < kCount; ++i) d[i] += part[i];
    } else {
      const StepScales<kForm> of_step(scales, tile, columns, group, inner / kGroupedFp8Depth, shared);
      if (!begin()) continue;
      float part[kCount];
      sum_alone(part);
      of_step.add(d, part);
    }
  }
  if constexpr (kSum == Fp8Sum::kFast) {
    products_wait<0>();
    settle(d);
    if (previous >= 0 && signals) barrier_arrive(map.empty(previous));
  }
}

template <GroupedForm kForm, Fp8Sum kSum, bool kLeftE5m2, typename Out>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                       const __grid_constant__ GroupedWork work, const __grid_constant__ BlockScales scales, Out* out,
                       bool accumulate) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float2 columns_of[2][64];  // wgrad's scales of a step, of each warpgroup
  using Stages = Fp8Stages<kSum == Fp8Sum::kFast>;
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
      for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x)) {
        const int head = head_of<kForm>(tile);
        for (int inner = 0; inner < head + tile.depth; inner += kGroupedFp8Depth, turn.next()) {
          barrier_wait(map.empty(turn.stage), turn.parity ^ 1);
          barrier_expect(map.full(turn.stage), Stages::kBytes);
          fetch_codes<kForm>(map, turn.stage, left, right, tile, head, inner);
        }
      }
    }
  } else {
    take_registers<232>();
    const float factor = kSum == Fp8Sum::kBlocks ? 1.0f : *work.left_scale * *work.right_scale;
    for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x)) {
      float d[Stages::kColumns / 2] = {};
      multiply_codes<kForm, kSum, kLeftE5m2>(map, turn, group, tile, work.columns, scales,
                                             reinterpret_cast<float*>(columns_of[group]), d);
      const int row0 = tile.at.row + group * 64;
      if (row0 >= tile.rows) continue;
      if constexpr (kSum != Fp8Sum::kBlocks)
#pragma unroll
        for (float& x : d) x *= factor;
      store_tile<kForm>(d, out, tile, work, row0, accumulate);
    }
  }
#endif
}

}  // namespace mbb::trainer::cuda
