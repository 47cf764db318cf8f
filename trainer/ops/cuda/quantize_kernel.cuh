// FP8 quantization in 128 x 128 tiles, written plain and transposed; producers compute the values instead of loading
// them.
#pragma once

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// A producer gives, for 8 columns of a row of [rows, cols], kOutputs sets of 8 values; set o belongs to columns o*cols
// + column.
struct PlainProducer {
  static constexpr int kOutputs = 1;
  static constexpr int kInFlight = 4;
  const bf16* x;
  int64_t cols;
  __device__ void operator()(int64_t row, int64_t column, float (&out)[1][8]) const {
    load8(x + row * cols + column, out[0]);
  }
};

struct NormProducer {
  static constexpr int kOutputs = 1;
  static constexpr int kInFlight = 1;
  const bf16* x;
  const bf16* weight;
  const float* rstd;
  int64_t cols;
  __device__ void operator()(int64_t row, int64_t column, float (&out)[1][8]) const {
    float w[8];
    load8(x + row * cols + column, out[0]);
    load8(weight + column, w);
    const float r = rstd[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) out[0][i] = rounded<bf16>(out[0][i] * r * w[i]);
  }
};

struct SwigluProducer {
  static constexpr int kOutputs = 1;
  static constexpr int kInFlight = 1;
  const bf16* gate_up;
  int64_t cols;
  __device__ void operator()(int64_t row, int64_t column, float (&out)[1][8]) const {
    float up[8];
    load8(gate_up + row * 2 * cols + column, out[0]);
    load8(gate_up + row * 2 * cols + cols + column, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[0][i] = rounded<bf16>(silu(out[0][i]) * up[i]);
  }
};

struct SwigluBackwardProducer {
  static constexpr int kOutputs = 2;
  static constexpr int kInFlight = 1;
  const bf16* gate_up;
  const bf16* dy;
  int64_t cols;
  __device__ void operator()(int64_t row, int64_t column, float (&out)[2][8]) const {
    float d[8];
    load8(gate_up + row * 2 * cols + column, out[0]);
    load8(gate_up + row * 2 * cols + cols + column, out[1]);
    load8(dy + row * cols + column, d);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float dgate, dup;
      swiglu_gradient(out[0][i], out[1][i], d[i], dgate, dup);
      out[0][i] = rounded<bf16>(dgate);
      out[1][i] = rounded<bf16>(dup);
    }
  }
};

// amax as the bit pattern of a non-negative float; NaN compares above infinity and so survives. A thread has
// Producer::kInFlight vectors in flight; the host keeps the count of vectors below 2^32.
template <typename Producer>
__global__ void amax_kernel(Producer produce, int64_t rows, int64_t cols, float* amax) {
  constexpr uint32_t kUnroll = Producer::kInFlight;
  const auto vectors = static_cast<uint32_t>(cols / 8);
  const auto count = static_cast<uint32_t>(rows * (cols / 8));
  const uint32_t stride = gridDim.x * blockDim.x;
  unsigned int top = 0;
  for (uint64_t first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += uint64_t{stride} * kUnroll) {
    float values[kUnroll][Producer::kOutputs][8] = {};
#pragma unroll
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint64_t at = first + uint64_t{u} * stride;
      if (at >= count) continue;
      const uint32_t row = rows == 1 ? 0 : static_cast<uint32_t>(at) / vectors;
      produce(row, int64_t{static_cast<uint32_t>(at) - row * vectors} * 8, values[u]);
    }
#pragma unroll
    for (uint32_t u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int o = 0; o < Producer::kOutputs; ++o)
#pragma unroll
        for (int i = 0; i < 8; ++i) top = max(top, __float_as_uint(fabsf(values[u][o][i])));
  }
  top = __reduce_max_sync(0xffffffffu, top);
  if ((threadIdx.x & 31) == 0) atomicMax(reinterpret_cast<unsigned int*>(amax), top);
}

__device__ __forceinline__ float tensor_scale(float amax, float fp8_max) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;  // zero, NaN or infinity
  const float scale = fp8_max / amax;
  return isinf(scale) ? 3.402823466e38f : scale;
}

// rows word of a column in shared memory: column-major words of four rows, swizzled so that writes meet no bank twice.
__device__ __forceinline__ int tile_word(int column, int row_word) {
  const int group = column >> 3;
  return column * 32 + (row_word ^ ((group & 1) | ((group >> 1) << 2)));
}

// Output o of a block's tile, transposed through shared memory: 16 rows of a column a store.
template <int kOutputs>
__device__ __forceinline__ void write_transposed(uint32_t* tile, const uint32_t (&words)[2][kOutputs][4][2], int o,
                                                 int64_t row0, int64_t column0, int64_t rows, int64_t cols,
                                                 uint8_t* qt) {
  const int column_group = threadIdx.x & 15, row_group = threadIdx.x >> 4;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t a = words[part][o][0][half], b = words[part][o][1][half];
      const uint32_t c = words[part][o][2][half], d = words[part][o][3][half];
      const uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
      const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      const int at = column_group * 8 + half * 4, row_word = row_group * 2 + part;
      tile[tile_word(at + 0, row_word)] = __byte_perm(ab_low, cd_low, 0x5410);
      tile[tile_word(at + 1, row_word)] = __byte_perm(ab_low, cd_low, 0x7632);
      tile[tile_word(at + 2, row_word)] = __byte_perm(ab_high, cd_high, 0x5410);
      tile[tile_word(at + 3, row_word)] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int chunk = lane & 7;  // 16 rows of a column
#pragma unroll
  for (int it = 0; it < 4; ++it) {
    const int group = warp * 4 + it;
    const int out_column = ((group >> 3) * 4 + (lane >> 3)) * 8 + (group & 7);
    const int64_t out_row = row0 + chunk * 16;
    if (out_row >= rows || column0 + out_column >= cols) continue;
    uint4 value;
    value.x = tile[tile_word(out_column, chunk * 4 + 0)];
    value.y = tile[tile_word(out_column, chunk * 4 + 1)];
    value.z = tile[tile_word(out_column, chunk * 4 + 2)];
    value.w = tile[tile_word(out_column, chunk * 4 + 3)];
    *reinterpret_cast<uint4*>(qt + (o * cols + column0 + out_column) * rows + out_row) = value;
  }
}

struct QuantizeScale {
  const float *amax, *given;
  float *found_amax, *inverse;
};

template <typename Producer, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(256)
    quantize_kernel(Producer produce, int64_t rows, int64_t cols, QuantizeScale by, uint8_t* q, uint8_t* qt) {
  __shared__ uint32_t tile[128 * 32];
  constexpr int kOutputs = Producer::kOutputs;
  const float scale = by.given != nullptr ? *by.given : tensor_scale(*by.amax, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *by.inverse = 1.0f / scale;
  unsigned int top = 0;
  // Last rows first: the pass that found amax ended there, and their tail may still be in L2.
  const int64_t row0 = int64_t{gridDim.y - 1 - blockIdx.y} * 128, column0 = int64_t{blockIdx.x} * 128;
  const int column_group = threadIdx.x & 15, row_group = threadIdx.x >> 4;
  const int64_t column = column0 + column_group * 8;
  uint32_t words[2][kOutputs][4][2] = {};
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = row0 + row_group * 8 + part * 4 + r;
      if (row >= rows || column >= cols) continue;
      float values[kOutputs][8];
      produce(row, column, values);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (by.found_amax != nullptr) top = max(top, __float_as_uint(fabsf(values[o][i])));
          values[o][i] *= scale;
        }
        words[part][o][r][0] = pack_fp8<kKind>(values[o][0], values[o][1], values[o][2], values[o][3]);
        words[part][o][r][1] = pack_fp8<kKind>(values[o][4], values[o][5], values[o][6], values[o][7]);
        if (q != nullptr)
          *reinterpret_cast<uint2*>(q + row * cols * kOutputs + o * cols + column) =
              make_uint2(words[part][o][r][0], words[part][o][r][1]);
      }
    }
  }
  if (by.found_amax != nullptr) {
    top = __reduce_max_sync(0xffffffffu, top);
    if ((threadIdx.x & 31) == 0) atomicMax(reinterpret_cast<unsigned int*>(by.found_amax), top);
  }
  if (qt == nullptr) return;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    if (o > 0) __syncthreads();
    write_transposed<kOutputs>(tile, words, o, row0, column0, rows, cols, qt);
  }
}

}  // namespace mbb::trainer::cuda
