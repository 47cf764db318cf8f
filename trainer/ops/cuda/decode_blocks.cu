// Codes and their scales back to bf16 or fp32, and scales in the library's order.
#include "trainer/ops/cuda/block_format.cuh"
#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

struct Codes {
  CodeType code;
  ScaleType scale;
  BlockTable blocks;
  const uint8_t* q;
  const void* scales;
};

__device__ __forceinline__ float value_at(const Codes& c, int64_t line, int64_t column) {
  const int64_t at = line * c.blocks.inner + column;
  float value;
  if (c.code == CodeType::kE2M1)
    value = e2m1_value(static_cast<uint8_t>((c.q[at / 2] >> (4 * (at % 2))) & 15));
  else
    value = c.code == CodeType::kE4M3 ? e4m3_value(c.q[at]) : e5m2_value(c.q[at]);
  if (c.scale == ScaleType::kNone) return value;
  const int64_t s = c.blocks.at(line, column);
  if (c.scale == ScaleType::kF32) return value * static_cast<const float*>(c.scales)[s];
  const uint8_t code = static_cast<const uint8_t*>(c.scales)[s];
  return value * (c.scale == ScaleType::kE8M0 ? e8m0_value(code) : e4m3_value(code));
}

// A block takes 32 x 32 elements; turned ones go through shared memory so that both sides are read and written in rows.
template <typename T, bool kTurned>
__global__ void decode_kernel(Codes c, T* out) {
  __shared__ float tile[32][33];
  const int64_t lines = c.blocks.lines, inner = c.blocks.inner;
  const int64_t column0 = int64_t{blockIdx.x} * 32, line0 = int64_t{blockIdx.y} * 32;
  for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
    const int64_t line = line0 + i, column = column0 + threadIdx.x;
    if (line >= lines || column >= inner) continue;
    const float value = value_at(c, line, column);
    if constexpr (kTurned)
      tile[i][threadIdx.x] = value;
    else
      out[line * inner + column] = from_float<T>(value);
  }
  if constexpr (!kTurned) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
    const int64_t column = column0 + i, line = line0 + threadIdx.x;
    if (line < lines && column < inner) out[column * lines + line] = from_float<T>(tile[threadIdx.x][i]);
  }
}

__global__ void factors_kernel(const float* a, const float* b, float beta, float* to) {
  to[0] = *a * *b;
  to[1] = beta;
}

__global__ void library_scales_kernel(int64_t lines, int64_t blocks, bool square, int64_t pitch, const float* scales,
                                      float* to) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= (square ? lines : blocks) * pitch) return;
  const int64_t line = square ? at / pitch : at % pitch, block = square ? at % pitch : at / pitch;
  to[at] = block < blocks ? scales[line * blocks + block] : 0.0f;
}

int64_t library_pitch(int64_t lines, int64_t blocks, bool square) {
  return square ? (blocks + 3) / 4 * 4 : lines;
}

template <typename T>
Status decode(const Codes& c, bool turned, T* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((c.blocks.inner + 31) / 32), static_cast<unsigned>((c.blocks.lines + 31) / 32));
  if (turned)
    decode_kernel<T, true><<<grid, dim3(32, 8), 0, stream>>>(c, out);
  else
    decode_kernel<T, false><<<grid, dim3(32, 8), 0, stream>>>(c, out);
  return launched("decode_blocks");
}

}  // namespace

Status decode_blocks(const DecodeBlocks& d, const void* q, const void* scales, void* out, const Launch& launch) {
  const Codes c{d.code, d.scale, d.blocks, static_cast<const uint8_t*>(q), scales};
  return d.to == Element::kF32 ? decode(c, d.turned, static_cast<float*>(out), launch.stream)
                               : decode(c, d.turned, static_cast<bf16*>(out), launch.stream);
}

Status gemm_factors(const float* a, const float* b, float beta, float* to, const Launch& launch) {
  factors_kernel<<<1, 1, 0, launch.stream>>>(a, b, beta, to);
  return launched("gemm_factors");
}

int64_t library_scales_bytes(int64_t lines, int64_t blocks, bool square) {
  return (square ? lines : blocks) * library_pitch(lines, blocks, square) * 4;
}

Status library_scales(int64_t lines, int64_t blocks, bool square, const float* scales, float* to,
                      const Launch& launch) {
  const int64_t count = library_scales_bytes(lines, blocks, square) / 4;
  library_scales_kernel<<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      lines, blocks, square, library_pitch(lines, blocks, square), scales, to);
  return launched("library_scales");
}

}  // namespace mbb::trainer::cuda
