// Grouped matrix products on Hopper: persistent blocks, one warpgroup that moves boxes of operands through shared
// memory and two that multiply 64 x 256 each, with the experts' row counts read on the device.
//
//   fprop y[rows, n] = x * w^T   left x[rows, k],  right w[expert][n, k],  both with the reduction innermost
//   dgrad dx[rows, k] = dy * w   left dy[rows, n], right w[expert][n, k],  right reduces over its rows
//   wgrad dw[n, k] (+)= dy^T * x left dy[rows, n], right x[rows, k],       both reduce over their rows
//
// An expert's rows begin anywhere. Rows of a tile past its end are those of the next expert: multiplied and not stored;
// where rows are the reduction, the last step clears them in shared memory.
#pragma once

#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/grouped_tiles.h"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/vector.cuh"
#include "trainer/ops/cuda/wgmma.cuh"

namespace mbb::trainer::cuda {

struct GroupedWork {
  const int32_t* segments = nullptr;  // [2, experts]: first row and rows of each
  int experts = 0;
  int rows = 0;                       // of wgrad's result; the others read theirs from the segments
  int columns = 0;                    // of the result
  int depth = 0;                      // of the reduction; wgrad reads its own from the segments
  const float* left_scale = nullptr;  // device scalars that results are multiplied with, both or neither
  const float* right_scale = nullptr;
};

inline GroupedWork grouped_work(GroupedForm form, const GroupedGemm& g) {
  GroupedWork work;
  work.segments = g.segments;
  work.left_scale = g.a_scale, work.right_scale = g.b_scale;
  work.experts = static_cast<int>(g.experts);
  work.rows = static_cast<int>(g.n);
  work.columns = static_cast<int>(form == GroupedForm::kFprop ? g.n : g.k);
  work.depth = static_cast<int>(form == GroupedForm::kFprop ? g.k : g.n);
  return work;
}

struct ExpertTile {
  int expert = 0, first = 0;  // first row of the expert in the buffer
  int rows = 0, depth = 0;    // of the expert's result and reduction
  GroupedTile at;
};

// The tiles of a block, in rising order.
template <GroupedForm kForm, int kColumns = kGroupedColumns>
class TileWalk {
 public:
  __device__ explicit TileWalk(const GroupedWork& work) : work_(work) { enter(); }

  // False when `index`, which never falls from call to call, lies past the last tile.
  __device__ bool seek(int index, ExpertTile& tile) {
    while (tile_.expert < work_.experts && index >= before_ + tiles_) {
      before_ += tiles_;
      ++tile_.expert;
      enter();
    }
    if (tile_.expert >= work_.experts) return false;
    tile = tile_;
    tile.at = grouped_tile(tile.rows, work_.columns, index - before_, kColumns);
    return true;
  }

 private:
  __device__ void enter() {
    if (tile_.expert >= work_.experts) return;
    tile_.first = work_.segments[tile_.expert];
    const int rows = work_.segments[work_.experts + tile_.expert];
    tile_.rows = kForm == GroupedForm::kWgrad ? work_.rows : rows;
    tile_.depth = kForm == GroupedForm::kWgrad ? rows : work_.depth;
    tiles_ = grouped_tiles(tile_.rows, work_.columns, kColumns);
  }

  const GroupedWork& work_;
  ExpertTile tile_;
  int before_ = 0, tiles_ = 0;
};

// The stage in turn and the parity of its barriers' phase.
template <int kStages>
struct TurnOf {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};
using StageTurn = TurnOf<kGroupedStages>;

// Shared memory from `base`: stages of left [128 x 64] and right [256 x 64], then "full" and "empty" barriers.
struct StageMap {
  uint32_t base;
  static constexpr uint32_t kLeftBytes = kGroupedRows * kGroupedDepth * 2, kBoxBytes = 64 * 64 * 2;
  __device__ uint32_t left(int stage) const { return base + static_cast<uint32_t>(stage * kGroupedStageBytes); }
  __device__ uint32_t right(int stage) const { return left(stage) + kLeftBytes; }
  __device__ uint32_t full(int stage) const {
    return base + static_cast<uint32_t>(kGroupedStages * kGroupedStageBytes + stage * 16);
  }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// One step's boxes of both operands, as few as their layouts allow: each costs the thread that starts it about as much
// as another, and of six small ones a step the copies fall behind the products.
template <GroupedForm kForm>
__device__ void fetch_step(const StageMap& map, int stage, const CUtensorMap& left, const CUtensorMap& right,
                           const ExpertTile& t, int inner) {
  const uint32_t full = map.full(stage), to_left = map.left(stage), to_right = map.right(stage);
  if constexpr (kForm == GroupedForm::kWgrad) {
    for (int i = 0; i < kGroupedRows / 64; ++i)
      copy_box(to_left + static_cast<uint32_t>(i) * StageMap::kBoxBytes, left, full, t.at.row + i * 64,
               t.first + inner);
    for (int i = 0; i < kGroupedColumns / 64; ++i)
      copy_box(to_right + static_cast<uint32_t>(i) * StageMap::kBoxBytes, right, full, t.at.column + i * 64,
               t.first + inner);
  } else {
    copy_box(to_left, left, full, inner, t.first + t.at.row);
    if constexpr (kForm == GroupedForm::kFprop)
      copy_box(to_right, right, full, inner, t.at.column, t.expert);
    else
      for (int i = 0; i < kGroupedColumns / 64; ++i)
        copy_box(to_right + static_cast<uint32_t>(i) * StageMap::kBoxBytes, right, full, t.at.column + i * 64, inner,
                 t.expert);
  }
}

// Clears rows [valid, 64) of the boxes that warpgroup `group` reads. The other warpgroup writes the same zeros.
__device__ __forceinline__ void clear_tail(const StageMap& map, int stage, int group, int valid) {
  const int pieces = (64 - valid) * 8;  // of 16 bytes, in a box
  for (int i = threadIdx.x & 127; i < pieces * (1 + kGroupedColumns / 64); i += 128) {
    const int box = i / pieces, piece = i - box * pieces;
    const uint32_t at = box == 0 ? map.left(stage) + static_cast<uint32_t>(group) * StageMap::kBoxBytes
                                 : map.right(stage) + static_cast<uint32_t>(box - 1) * StageMap::kBoxBytes;
    asm volatile(
        "st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(at + static_cast<uint32_t>(valid * 128 + piece * 16)), "r"(0)
        : "memory");
  }
  shared_stores_ready();
  warpgroup_meet(1 + group);
}

// What the four threads of a quad hold of four column groups of 8 becomes one whole group a thread.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4], int lane) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t give = upper ? v[i] : v[i + distance];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, give, distance);
      if (upper)
        v[i] = got;
      else
        v[i + distance] = got;
    }
  }
}

// A warpgroup's 64 rows of results, kCount a thread, to rows [row0, rows) of `out`, which begins at the expert's first
// row.
template <int kCount>
__device__ __forceinline__ void store_bf16(const float (&d)[kCount], bf16* out, int row0, int rows, int column0,
                                           int columns) {
  const int lane = threadIdx.x & 31, row = row0 + (threadIdx.x & 127) / 32 * 16 + (lane >> 2);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < kCount / 16; ++i) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pack_bf16(d[(i * 4 + j) * 4 + half * 2], d[(i * 4 + j) * 4 + half * 2 + 1]);
      transpose_quad(v, lane);
      const int at = row + half * 8, column = column0 + (i * 4 + (lane & 3)) * 8;
      if (at < rows && column < columns)
        *reinterpret_cast<uint4*>(out + int64_t{at} * columns + column) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

// Two neighbouring elements of a gradient.
__device__ __forceinline__ float2 load_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float2 load_pair(const bf16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ __forceinline__ void store_pair(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
__device__ __forceinline__ void store_pair(bf16* to, float a, float b) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(a, b);
}

// The same for gradients, which are added to what is there when `accumulate`: 16 loads of a thread are under way at
// once.
template <typename Out, int kCount>
__device__ __forceinline__ void store_gradient(float (&d)[kCount], Out* out, int row0, int rows, int column0,
                                               int columns, bool accumulate) {
  const int lane = threadIdx.x & 31, row = row0 + (threadIdx.x & 127) / 32 * 16 + (lane >> 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + half * 8;
    if (at >= rows) continue;
    Out* const to = out + int64_t{at} * columns + column0 + (lane & 3) * 2;
    if (accumulate) {
#pragma unroll
      for (int part = 0; part < kCount / 64; ++part) {
        float2 old[16];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int column = (part * 16 + j) * 8;
          old[j] = load_pair(to + (column0 + column < columns ? column : 0));  // no branch: loads do not wait
        }
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int i = (part * 16 + j) * 4 + half * 2;
          d[i] += old[j].x, d[i + 1] += old[j].y;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
      if (column0 + j * 8 < columns) store_pair(to + j * 8, d[j * 4 + half * 2], d[j * 4 + half * 2 + 1]);
  }
}

// A warpgroup's rows of a tile, from row0 on.
template <GroupedForm kForm, typename Out, int kCount>
__device__ __forceinline__ void store_tile(float (&d)[kCount], Out* out, const ExpertTile& tile,
                                           const GroupedWork& work, int row0, bool accumulate) {
  if constexpr (kForm == GroupedForm::kWgrad)
    store_gradient(d, out + int64_t{tile.expert} * work.rows * work.columns, row0, tile.rows, tile.at.column,
                   work.columns, accumulate);
  else
    store_bf16(d, out + int64_t{tile.first} * work.columns, row0, tile.rows, tile.at.column, work.columns);
}

// Multiplies one tile's 64 rows: d += left * right over all steps. A warpgroup without rows only keeps the turn.
template <GroupedForm kForm>
__device__ __forceinline__ void multiply_steps(const StageMap& map, StageTurn& turn, int group, int depth, bool active,
                                               float (&d)[128]) {
  constexpr bool kLeftTransposed = kForm == GroupedForm::kWgrad, kRightTransposed = kForm != GroupedForm::kFprop;
  const bool signals = (threadIdx.x & 31) == 0;
  const int steps = (depth + kGroupedDepth - 1) / kGroupedDepth;
  if (!active) {
    for (int step = 0; step < steps; ++step, turn.next()) {
      barrier_wait(map.full(turn.stage), turn.parity);
      if (signals) barrier_arrive(map.empty(turn.stage));
    }
    return;
  }
  int previous = 0;
  for (int step = 0; step < steps; ++step, turn.next()) {
    barrier_wait(map.full(turn.stage), turn.parity);
    if constexpr (kForm == GroupedForm::kWgrad) {
      const int valid = depth - step * kGroupedDepth;
      if (valid < kGroupedDepth) clear_tail(map, turn.stage, group, valid);
    }
    const uint64_t left =
        operand_at<kLeftTransposed>(map.left(turn.stage) + static_cast<uint32_t>(group) * StageMap::kBoxBytes);
    const uint64_t right = operand_at<kRightTransposed>(map.right(turn.stage));
    products_begin();
#pragma unroll
    for (int i = 0; i < kGroupedDepth / 16; ++i)
      multiply_64x256x16<kLeftTransposed, kRightTransposed>(d, left + i * operand_step<kLeftTransposed>(),
                                                            right + i * operand_step<kRightTransposed>());
    products_commit();
    // The step before has been read.
    products_wait<1>();
    if (step > 0 && signals) barrier_arrive(map.empty(previous));
    previous = turn.stage;
  }
  products_wait<0>();
  settle(d);
  if (steps > 0 && signals) barrier_arrive(map.empty(previous));
}

template <GroupedForm kForm, typename Out>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    grouped_wgmma_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                         const __grid_constant__ GroupedWork work, Out* out, bool accumulate) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  const StageMap map{(shared_address(memory) + 1023u) & ~1023u};
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kGroupedStages; ++s) {
      barrier_init(map.full(s), 1);
      barrier_init(map.empty(s), 8);  // the warps that multiply
    }
    barriers_ready();
  }
  __syncthreads();
  TileWalk<kForm> walk(work);
  ExpertTile tile;
  StageTurn turn;
  if (group == 2) {
    give_registers<40>();
    if (threadIdx.x == 256) {
      prefetch_map(left);
      prefetch_map(right);
      for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x))
        for (int inner = 0; inner < tile.depth; inner += kGroupedDepth, turn.next()) {
          barrier_wait(map.empty(turn.stage), turn.parity ^ 1);
          barrier_expect(map.full(turn.stage), kGroupedStageBytes);
          fetch_step<kForm>(map, turn.stage, left, right, tile, inner);
        }
    }
  } else {
    take_registers<232>();
    for (int index = static_cast<int>(blockIdx.x); walk.seek(index, tile); index += static_cast<int>(gridDim.x)) {
      float d[128] = {};
      const int row0 = tile.at.row + group * 64;
      const bool active = row0 < tile.rows;
      multiply_steps<kForm>(map, turn, group, tile.depth, active, d);
      if (!active) continue;
      if (work.left_scale != nullptr) {
        const float factor = *work.left_scale * *work.right_scale;
#pragma unroll
        for (float& x : d) x *= factor;
      }
      store_tile<kForm>(d, out, tile, work, row0, accumulate);
    }
  }
#endif
}

}  // namespace mbb::trainer::cuda
