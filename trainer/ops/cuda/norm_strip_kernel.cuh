// RMSNorm to FP8 in one launch, where its input does not fit on the chip: 64 rows of 4096 a block, four a warp. Until
// the blocks know the largest magnitude, one and a half of a warp's rows wait in shared memory and one in registers;
// the rest is read again, mostly from L2.
#pragma once

#include "trainer/ops/cuda/quantize_once_kernel.cuh"
#include "trainer/ops/cuda/wgmma.cuh"

namespace mbb::trainer::cuda {

constexpr int kStripRows = 64, kStripCols = 4096, kStripVectors = kStripCols / 256;  // vectors: of a row, a lane
// Vectors of a lane that wait in shared memory: row 2's, then the second half of row 1's.
constexpr int kStripWaiting = kStripVectors + kStripVectors / 2;
// A chunk of 256 columns turned: 16 words of four rows a column, 4 words apart every eight columns.
constexpr int kStripTurned = 256 * 16 + 32 * 4;
constexpr int kStripShared = kStripWaiting * 512 * 16 + 2 * kStripTurned * 4;

// Loads and floats that the compiler must not keep in registers from one use to the next.
__device__ __forceinline__ uint4 load_again(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ uint4 shared_again(const uint4* from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(from)));
  return v;
}
__device__ __forceinline__ void unpack_again(const uint4& line, float (&to)[8]) {
  const uint32_t words[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t low, high;
    asm volatile("prmt.b32 %0, %1, 0, 0x1044;" : "=r"(low) : "r"(words[i]));
    asm volatile("prmt.b32 %0, %1, 0, 0x3244;" : "=r"(high) : "r"(words[i]));
    to[2 * i] = __uint_as_float(low), to[2 * i + 1] = __uint_as_float(high);
  }
}

// A thread's place in the block's strip.
struct NormStrip {
  const uint4 *from, *weight;  // of row r: vector v at from + r * kStripCols / 8 + v * 32; of the weight at v * 32
  const uint4* waiting;        // slot s at s * 32
  float eps;
  float rstd[4];

  __device__ __forceinline__ const uint4* at(int r, int v) const { return from + r * (kStripCols / 8) + v * 32; }
  __device__ __forceinline__ const uint4* slot(int s) const { return waiting + s * 32; }
  // What waits comes by the copy engine.
  __device__ __forceinline__ void start_copies(uint32_t arrived) const {
    constexpr uint32_t kRow = kStripCols * sizeof(bf16), kHalf = kRow / 2;
    if ((threadIdx.x & 31) == 0) {
      barrier_init(arrived, 1);
      barriers_ready();
      barrier_expect(arrived, kRow + kHalf);
      copy_run(shared_address(waiting), at(2, 0), kRow, arrived);
      copy_run(shared_address(slot(kStripVectors)), at(1, kStripVectors / 2), kHalf, arrived);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void end_sum(int r, float sum) {
    rstd[r] = rsqrtf(warp_sum(sum) * (1.0f / kStripCols) + eps);
  }
  // The larger of `top` and the magnitudes, in bits, of a line's results.
  __device__ __forceinline__ uint32_t top_of(const uint4& line, int r, int v, uint32_t top) const {
    float x[8], w[8];
    unpack_again(line, x);
    unpack(load_again(weight + v * 32), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) top = max(top, __float_as_uint(fabsf(x[i] * rstd[r] * w[i])));
    return top;
  }
  template <__nv_fp8_interpretation_t kKind>
  __device__ __forceinline__ uint2 codes(const uint4& line, int r, const float (&w)[8], float scale) const {
    float x[8];
    unpack(line, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded<bf16>(x[i] * rstd[r] * w[i]) * scale;
    return make_uint2(pack_fp8<kKind>(x[0], x[1], x[2], x[3]), pack_fp8<kKind>(x[4], x[5], x[6], x[7]));
  }
};

__device__ __forceinline__ float squares_of(const uint4& line) {
  float x[8], sum = 0.0f;
  unpack(line, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x[i] * x[i];
  return sum;
}

// Of the first kEnd vectors of a row, which lie in `raw`.
template <int kEnd>
__device__ __forceinline__ float squares_of(const uint4 (&raw)[kStripVectors]) {
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kEnd; ++v) sum += squares_of(raw[v]);
  return sum;
}
template <int kEnd>
__device__ __forceinline__ uint32_t top_of(const NormStrip& strip, const uint4 (&raw)[kStripVectors], int r,
                                           uint32_t top) {
#pragma unroll
  for (int v = 0; v < kEnd; ++v) top = strip.top_of(raw[v], r, v, top);
  return top;
}

// Finds rstd of the warp's rows and the thread's largest magnitude; leaves row 3 in `raw` and the others where they
// wait.
__device__ __forceinline__ uint32_t strip_top(NormStrip& strip, uint4 (&raw)[kStripVectors], uint32_t arrived) {
  constexpr int kV = kStripVectors, kHalf = kV / 2;
  strip.start_copies(arrived);
#pragma unroll
  for (int v = 0; v < kV; ++v) raw[v] = load_again(strip.at(0, v));
  strip.end_sum(0, squares_of<kV>(raw));
  uint32_t top = top_of<kV>(strip, raw, 0, 0);
#pragma unroll
  for (int v = 0; v < kHalf; ++v) raw[v] = load_again(strip.at(1, v));
  barrier_wait(arrived, 0);
  float sum = squares_of<kHalf>(raw);
#pragma unroll 4
  for (int v = kHalf; v < kV; ++v) sum += squares_of(shared_again(strip.slot(kHalf + v)));
  strip.end_sum(1, sum);
  top = top_of<kHalf>(strip, raw, 1, top);
#pragma unroll 4
  for (int v = kHalf; v < kV; ++v) top = strip.top_of(shared_again(strip.slot(kHalf + v)), 1, v, top);
#pragma unroll
  for (int v = 0; v < kV; ++v) raw[v] = load_again(strip.at(3, v));
  sum = 0.0f;
#pragma unroll 4
  for (int v = 0; v < kV; ++v) sum += squares_of(shared_again(strip.slot(v)));
  strip.end_sum(2, sum);
#pragma unroll 4
  for (int v = 0; v < kV; ++v) top = strip.top_of(shared_again(strip.slot(v)), 2, v, top);
  strip.end_sum(3, squares_of<kV>(raw));
  return top_of<kV>(strip, raw, 3, top);
}

// Words of four rows by columns, so that a warp's lie in different banks.
__device__ __forceinline__ void turn_codes(const uint2 (&c)[4], uint32_t* turned) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t* const to = turned + lane * (8 * 16 + 4) + (warp ^ (lane >> 3));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t a = half ? c[0].y : c[0].x, b = half ? c[1].y : c[1].x;
    const uint32_t d = half ? c[2].y : c[2].x, e = half ? c[3].y : c[3].x;
    const uint32_t ab_low = __byte_perm(a, b, 0x5140), de_low = __byte_perm(d, e, 0x5140);
    const uint32_t ab_high = __byte_perm(a, b, 0x7362), de_high = __byte_perm(d, e, 0x7362);
    to[(half * 4 + 0) * 16] = __byte_perm(ab_low, de_low, 0x5410);
    to[(half * 4 + 1) * 16] = __byte_perm(ab_low, de_low, 0x7632);
    to[(half * 4 + 2) * 16] = __byte_perm(ab_high, de_high, 0x5410);
    to[(half * 4 + 3) * 16] = __byte_perm(ab_high, de_high, 0x7632);
  }
}
// Four threads write the 64 rows of a column.
__device__ __forceinline__ void write_turned_chunk(const uint32_t* turned, uint8_t* qt, int pitch) {
#pragma unroll
  for (int it = 0; it < 2; ++it) {
    const int at = it * 512 + static_cast<int>(threadIdx.x), column = at >> 2, part = at & 3, mixed = column >> 6;
    uint4 v = *reinterpret_cast<const uint4*>(turned + column * 16 + (column >> 3) * 4 + part * 4);
    if (mixed & 1) v = make_uint4(v.y, v.x, v.w, v.z);
    if (mixed & 2) v = make_uint4(v.z, v.w, v.x, v.y);
    *reinterpret_cast<uint4*>(qt + int64_t{column} * pitch + part * 16) = v;
  }
}

template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ void write_strip(const NormStrip& strip, const uint4 (&raw)[kStripVectors], float scale,
                                            int rows, uint8_t* q, uint8_t* qt, uint32_t* turned) {
  constexpr int kV = kStripVectors, kHalf = kV / 2, kAhead = 2;
  uint4 ahead[kAhead][2];
#pragma unroll
  for (int v = 0; v < kAhead; ++v) ahead[v][0] = __ldcs(strip.at(0, v)), ahead[v][1] = __ldcs(strip.at(1, v));
#pragma unroll
  for (int v = 0; v < kV; ++v) {
    float w[8];
    unpack(load_again(strip.weight + v * 32), w);
    const uint4 lines[4] = {ahead[v % kAhead][0], v < kHalf ? ahead[v % kAhead][1] : *strip.slot(kHalf + v),
                            *strip.slot(v), raw[v]};
    if (v + kAhead < kV) ahead[v % kAhead][0] = __ldcs(strip.at(0, v + kAhead));
    if (v + kAhead < kHalf) ahead[v % kAhead][1] = __ldcs(strip.at(1, v + kAhead));
    uint2 codes[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      codes[r] = strip.codes<kKind>(lines[r], r, w, scale);
      if (q != nullptr) *reinterpret_cast<uint2*>(q + r * kStripCols + v * 256) = codes[r];
    }
    if (qt == nullptr) continue;
    uint32_t* const buffer = turned + v % 2 * kStripTurned;
    turn_codes(codes, buffer);
    __syncthreads();  // the chunk before the last has been written
    write_turned_chunk(buffer, qt, rows);
    qt += int64_t{rows} * 256;
  }
}

// Launched cooperatively with a block a strip; `rows` divides into strips.
template <__nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(512, 1)
    norm_strip_kernel(NormOnce norm, int rows, OnceScale by, uint8_t* q, uint8_t* qt) {
  extern __shared__ uint4 waiting[];
  auto* const turned = reinterpret_cast<uint32_t*>(waiting + kStripWaiting * 512);
  __shared__ uint32_t tops[16];
  alignas(8) __shared__ uint64_t arrived[16];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t strip_row = int64_t{blockIdx.x} * kStripRows, first = strip_row + warp * 4;
  NormStrip strip{reinterpret_cast<const uint4*>(norm.x + first * kStripCols) + lane,
                  reinterpret_cast<const uint4*>(norm.weight) + lane,
                  waiting + warp * kStripWaiting * 32 + lane,
                  norm.eps,
                  {}};
  uint4 raw[kStripVectors];
  uint32_t top = __reduce_max_sync(0xffffffffu, strip_top(strip, raw, shared_address(arrived + warp)));
#pragma unroll
  for (int r = 0; r < 4; ++r)
    if (lane == r) norm.found_rstd[first + r] = strip.rstd[r];
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  top = __reduce_max_sync(0xffffffffu, tops[lane & 15]);
  if (threadIdx.x == 0) by.partials[blockIdx.x] = __float_as_uint(rounded<bf16>(__uint_as_float(top)));
  cooperative_groups::this_grid().sync();
  top = 0;
  for (int i = lane; i < static_cast<int>(gridDim.x); i += 32) top = max(top, __ldcg(by.partials + i));
  const float amax = __uint_as_float(__reduce_max_sync(0xffffffffu, top));
  const float scale = tensor_scale(amax, kKind == __NV_E4M3 ? 448.0f : 57344.0f);
  if (blockIdx.x == 0 && threadIdx.x == 0) *by.inverse = 1.0f / scale, *by.amax = amax;
  if (q != nullptr) q += first * kStripCols + lane * 8;
  if (qt != nullptr) qt += strip_row;
  write_strip<kKind>(strip, raw, scale, rows, q, qt, turned);
}

}  // namespace mbb::trainer::cuda
