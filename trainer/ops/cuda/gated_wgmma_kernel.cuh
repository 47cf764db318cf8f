// The kernel of gated_wgmma.h: tiles, stages and products are those of grouped_wgmma_kernel.cuh.
//
//   forward   128 tokens x (128 gates and their 128 ups): a thread holds both of a pair
//   backward  128 tokens x 256 gradients of the gated value; gates and ups come from memory, a half of them while the
//             tile is still being multiplied
#pragma once

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/grouped_wgmma_kernel.cuh"

namespace mbb::trainer::cuda {

struct GatedWork {
  int tokens = 0, ffn = 0, depth = 0;
  const bf16* from = nullptr;  // backward: gates and ups
  bf16* gate_up = nullptr;     // forward: the product; backward: gradients
  bf16* y = nullptr;           // forward
  __host__ __device__ int columns(bool forward) const { return forward ? 2 * ffn : ffn; }
};

// silu(gate) * up of two pairs, from what memory will hold.
__device__ __forceinline__ uint32_t gate_two(uint32_t gate, uint32_t up) {
  const float low = silu(__uint_as_float(gate << 16)) * __uint_as_float(up << 16);
  return pack_bf16(low, silu(__uint_as_float(gate & 0xffff0000u)) * __uint_as_float(up & 0xffff0000u));
}

// A warpgroup's 64 tokens x 128 gates and their ups, and what they give; `column0` counts gates.
__device__ __forceinline__ void store_gated(const float (&d)[128], const GatedWork& work, int row0, int column0) {
  const int lane = threadIdx.x & 31, row = row0 + (threadIdx.x & 127) / 32 * 16 + (lane >> 2);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t gate[4], up[4], y[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (i * 4 + j) * 4 + half * 2;
        gate[j] = pack_bf16(d[at], d[at + 1]);
        up[j] = pack_bf16(d[64 + at], d[64 + at + 1]);
        y[j] = gate_two(gate[j], up[j]);
      }
      transpose_quad(gate, lane);
      transpose_quad(up, lane);
      transpose_quad(y, lane);
      const int at = row + half * 8, column = column0 + (i * 4 + (lane & 3)) * 8;
      if (at >= work.tokens || column >= work.ffn) continue;
      bf16* const to = work.gate_up + int64_t{at} * 2 * work.ffn + column;
      *reinterpret_cast<uint4*>(to) = make_uint4(gate[0], gate[1], gate[2], gate[3]);
      *reinterpret_cast<uint4*>(to + work.ffn) = make_uint4(up[0], up[1], up[2], up[3]);
      *reinterpret_cast<uint4*>(work.y + int64_t{at} * work.ffn + column) = make_uint4(y[0], y[1], y[2], y[3]);
    }
}

// Gates and ups of one half of a warpgroup's rows, eight neighbours a piece: sixteen loads under way at once.
struct GatePieces {
  uint4 gate[8], up[8];

  __device__ __forceinline__ void load(const GatedWork& work, int row0, int column0, int half) {
    const int lane = threadIdx.x & 31, row = row0 + (threadIdx.x & 127) / 32 * 16 + (lane >> 2) + half * 8;
    // No branch, so that loads do not wait: what lies outside reads the first of all.
    const bf16* const from = work.from + (row < work.tokens ? int64_t{row} * 2 * work.ffn : 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = column0 + (i * 4 + (lane & 3)) * 8;
      const bf16* const at = from + (column < work.ffn ? column : 0);
      gate[i] = *reinterpret_cast<const uint4*>(at);
      up[i] = *reinterpret_cast<const uint4*>(at + work.ffn);
    }
  }
};

// Gradients of a half of the rows.
__device__ __forceinline__ void store_gate_gradients(const float (&d)[128], const GatePieces& pieces,
                                                     const GatedWork& work, int row0, int column0, int half) {
  const int lane = threadIdx.x & 31, row = row0 + (threadIdx.x & 127) / 32 * 16 + (lane >> 2) + half * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = pack_bf16(d[(i * 4 + j) * 4 + half * 2], d[(i * 4 + j) * 4 + half * 2 + 1]);
    transpose_quad(v, lane);
    const int column = column0 + (i * 4 + (lane & 3)) * 8;
    if (row >= work.tokens || column >= work.ffn) continue;
    const uint32_t gates[4] = {pieces.gate[i].x, pieces.gate[i].y, pieces.gate[i].z, pieces.gate[i].w};
    const uint32_t ups[4] = {pieces.up[i].x, pieces.up[i].y, pieces.up[i].z, pieces.up[i].w};
    uint32_t dgate[4], dup[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float g0, u0, g1, u1;
      swiglu_gradient(__uint_as_float(gates[j] << 16), __uint_as_float(ups[j] << 16), __uint_as_float(v[j] << 16), g0,
                      u0);
      swiglu_gradient(__uint_as_float(gates[j] & 0xffff0000u), __uint_as_float(ups[j] & 0xffff0000u),
                      __uint_as_float(v[j] & 0xffff0000u), g1, u1);
      dgate[j] = pack_bf16(g0, g1), dup[j] = pack_bf16(u0, u1);
    }
    bf16* const to = work.gate_up + int64_t{row} * 2 * work.ffn + column;
    *reinterpret_cast<uint4*>(to) = make_uint4(dgate[0], dgate[1], dgate[2], dgate[3]);
    *reinterpret_cast<uint4*>(to + work.ffn) = make_uint4(dup[0], dup[1], dup[2], dup[3]);
  }
}

// Boxes of one step. Forward: the right operand's rows are 128 gates, then their ups.
template <bool kForward>
__device__ void fetch_gated(const StageMap& map, int stage, const CUtensorMap& left, const CUtensorMap& right,
                            const GroupedTile& tile, int ffn, int inner) {
  const uint32_t full = map.full(stage), to_right = map.right(stage);
  copy_box(map.left(stage), left, full, inner, tile.row);
  if constexpr (kForward) {
    copy_box(to_right, right, full, inner, tile.column / 2);
    copy_box(to_right + 2 * StageMap::kBoxBytes, right, full, inner, ffn + tile.column / 2);
  } else {
    for (int i = 0; i < kGroupedColumns / 64; ++i)
      copy_box(to_right + static_cast<uint32_t>(i) * StageMap::kBoxBytes, right, full, tile.column + i * 64, inner);
  }
}

template <bool kForward>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    gated_wgmma_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                       const __grid_constant__ GatedWork work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr GroupedForm kForm = kForward ? GroupedForm::kFprop : GroupedForm::kDgrad;
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
  const int columns = work.columns(kForward), tiles = grouped_tiles(work.tokens, columns);
  StageTurn turn;
  if (group == 2) {
    give_registers<40>();
    if (threadIdx.x != 256) return;
    prefetch_map(left);
    prefetch_map(right);
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
      const GroupedTile tile = grouped_tile(work.tokens, columns, index);
      for (int inner = 0; inner < work.depth; inner += kGroupedDepth, turn.next()) {
        barrier_wait(map.empty(turn.stage), turn.parity ^ 1);
        barrier_expect(map.full(turn.stage), kGroupedStageBytes);
        fetch_gated<kForward>(map, turn.stage, left, right, tile, work.ffn, inner);
      }
    }
  } else {
    take_registers<232>();
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
      const GroupedTile tile = grouped_tile(work.tokens, columns, index);
      const int row0 = tile.row + group * 64;
      const bool active = row0 < work.tokens;
      float d[128] = {};
      if constexpr (kForward) {
        multiply_steps<kForm>(map, turn, group, work.depth, active, d);
        if (active) store_gated(d, work, row0, tile.column / 2);
      } else {
        GatePieces pieces;
        pieces.load(work, row0, tile.column, 0);
        multiply_steps<kForm>(map, turn, group, work.depth, active, d);
        if (!active) continue;
        store_gate_gradients(d, pieces, work, row0, tile.column, 0);
        pieces.load(work, row0, tile.column, 1);
        store_gate_gradients(d, pieces, work, row0, tile.column, 1);
      }
    }
  }
#endif
}

}  // namespace mbb::trainer::cuda
