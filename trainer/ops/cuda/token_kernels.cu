// Rows in E4M3, and where rows that arrive lie.
#include <cuda_fp8.h>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/token_kernels.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

// The scale rule of trainer/precision/fp8.h for E4M3.
__device__ float e4m3_scale(float amax) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;
  const float scale = 448.0f / amax;
  return isinf(scale) ? 3.402823466e38f : scale;
}

// A warp a block of kTokenBlock elements.
template <typename T>
__global__ void quantize_tokens_kernel(const T* x, int64_t cols, int64_t parts, uint8_t* q, float* inverse) {
  const int64_t row = blockIdx.x / parts, part = blockIdx.x % parts;
  const int64_t begin = part * kTokenBlock, end = min(begin + kTokenBlock, cols);
  float amax = 0.0f;
  bool nan = false;
  for (int64_t c = begin + threadIdx.x; c < end; c += 32) {
    const float value = to_float(x[row * cols + c]);
    nan = nan || isnan(value);
    amax = fmaxf(amax, fabsf(value));
  }
  amax = __any_sync(0xffffffffu, nan) ? NAN : warp_max(amax);
  const float scale = e4m3_scale(amax);
  for (int64_t c = begin + threadIdx.x; c < end; c += 32)
    q[row * cols + c] = __nv_cvt_float_to_fp8(to_float(x[row * cols + c]) * scale, __NV_SATFINITE, __NV_E4M3);
  if (threadIdx.x == 0) inverse[blockIdx.x] = 1.0f / scale;
}

template <typename T>
__global__ void dequantize_tokens_kernel(const uint8_t* q, const float* inverse, int64_t cols, int64_t parts, T* x) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(q[row * cols + c], __NV_E4M3);
    x[row * cols + c] = from_float<T>(__half2float(half) * inverse[row * parts + c / kTokenBlock]);
  }
}

// A thread a (member, source): few, and each reads the counts before it.
__global__ void receive_plan_kernel(ReceiveAttrs a, int64_t pieces, int64_t sources, const int32_t* counts,
                                    int32_t* segments) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (at >= a.members * sources) return;
  const int64_t member = at / sources, source = at % sources;
  int64_t next = member * a.member_rows;
  if (a.slot_rows > 0) {
    next += source * a.slot_rows;
  } else {
    for (int64_t i = member * sources * a.experts; i < at * a.experts; ++i) next += counts[i];
  }
  for (int64_t e = 0; e < a.experts; ++e) {
    const int64_t piece = at * a.experts + e;
    segments[piece] = static_cast<int32_t>(next);
    segments[pieces + piece] = counts[piece];
    next += a.capacity > 0 ? a.capacity : counts[piece];
  }
}

int64_t parts_of(RowShape shape) {
  return (shape.cols + kTokenBlock - 1) / kTokenBlock;
}

}  // namespace

Status quantize_tokens(Element element, RowShape shape, const void* x, uint8_t* q, float* inverse,
                       const Launch& launch) {
  const int64_t parts = parts_of(shape);
  return by_element("quantize_tokens", element, [&]<typename T>(T) {
    quantize_tokens_kernel<T>
        <<<blocks(shape.rows * parts), 32, 0, launch.stream>>>(static_cast<const T*>(x), shape.cols, parts, q, inverse);
  });
}

Status dequantize_tokens(Element element, RowShape shape, const uint8_t* q, const float* inverse, void* x,
                         const Launch& launch) {
  return by_element("dequantize_tokens", element, [&]<typename T>(T) {
    dequantize_tokens_kernel<T>
        <<<blocks(shape.rows), kBlock, 0, launch.stream>>>(q, inverse, shape.cols, parts_of(shape), static_cast<T*>(x));
  });
}

Status receive_plan(const ReceiveAttrs& attrs, int64_t pieces, const int32_t* counts, int32_t* segments,
                    const Launch& launch) {
  const int64_t sources = pieces / (attrs.members * attrs.experts);
  receive_plan_kernel<<<blocks((attrs.members * sources + 63) / 64), 64, 0, launch.stream>>>(attrs, pieces, sources,
                                                                                             counts, segments);
  return launched("receive_plan");
}

}  // namespace mbb::trainer::cuda
