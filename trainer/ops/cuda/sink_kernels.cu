// Few threads a row of a head, eight elements each.
#include "trainer/ops/cuda/sink_kernels.h"

#include <algorithm>
#include <bit>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

// Rows of heads one after the other: head fastest, then batch, as out has them.
struct Sinks {
  SinkShape shape;
  int lanes;  // threads a row of a head, a power of two
  const bf16* values;

  __device__ int64_t count() const { return shape.rows * shape.batch * shape.heads; }
  __device__ int64_t lse_at(int64_t at) const {
    const int64_t head = at % shape.heads, b = at / shape.heads % shape.batch, row = at / shape.heads / shape.batch;
    return (b * shape.heads + head) * shape.lse_rows + row;
  }
  __device__ float of(int64_t at) const { return to_float(values[at % shape.heads]); }
};

__global__ void __launch_bounds__(kBlock) apply_kernel(Sinks s, bf16* out, float* lse) {
  const int64_t at = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / s.lanes;
  if (at >= s.count()) return;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const int64_t lse_at = s.lse_at(at);
  const float without = lse[lse_at], sink = s.of(at);
  // A row that sees no key has lse = -inf: everything goes to the sink.
  const float kept = 1.0f / (1.0f + expf(sink - without));
  for (int64_t c = int64_t{lane} * 8; c < s.shape.value_dim; c += int64_t{s.lanes} * 8) {
    bf16* const to = out + at * s.shape.value_dim + c;
    float x[8];
    load8(to, x);
#pragma unroll
    for (float& value : x) value *= kept;
    store8(to, x);
  }
  __syncwarp();  // every lane of the row has read its lse
  if (lane == 0) lse[lse_at] = fmaxf(without, sink) + log1pf(expf(-fabsf(without - sink)));
}

// parts [heads, rows * batch]: what a row adds to the gradient of its head's sink.
__global__ void __launch_bounds__(kBlock)
    parts_kernel(Sinks s, const bf16* out, const bf16* dout, const float* lse, float* parts) {
  const int64_t at = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / s.lanes;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  float delta = 0.0f;
  if (at < s.count())
    for (int64_t c = int64_t{lane} * 8; c < s.shape.value_dim; c += int64_t{s.lanes} * 8) {
      float o[8], d[8];
      load8(out + at * s.shape.value_dim + c, o);
      load8(dout + at * s.shape.value_dim + c, d);
#pragma unroll
      for (int i = 0; i < 8; ++i) delta += o[i] * d[i];
    }
  for (int offset = s.lanes / 2; offset > 0; offset /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, offset);
  if (at < s.count() && lane == 0)
    parts[at % s.shape.heads * (s.shape.rows * s.shape.batch) + at / s.shape.heads] =
        -expf(s.of(at) - lse[s.lse_at(at)]) * delta;
}

// A block a head.
__global__ void __launch_bounds__(kBlock) sum_kernel(const float* parts, int64_t rows, float* dsinks, bool accumulate) {
  __shared__ float scratch[32];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < rows; i += kBlock) sum += parts[blockIdx.x * rows + i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dsinks[blockIdx.x] = (accumulate ? dsinks[blockIdx.x] : 0.0f) + sum;
}

Sinks sinks_of(const SinkShape& shape, const void* values) {
  const auto words = static_cast<uint64_t>(shape.value_dim / 8);
  const auto lanes = static_cast<int>(std::min<uint64_t>(std::bit_floor(words), 32));
  return {shape, lanes, static_cast<const bf16*>(values)};
}

unsigned grid_of(const Sinks& s) {
  return blocks((s.shape.rows * s.shape.batch * s.shape.heads * s.lanes + kBlock - 1) / kBlock);
}

}  // namespace

Status apply_sinks(const SinkShape& shape, const void* sinks, void* out, float* lse, const Launch& launch) {
  const Sinks s = sinks_of(shape, sinks);
  apply_kernel<<<grid_of(s), kBlock, 0, launch.stream>>>(s, static_cast<bf16*>(out), lse);
  return launched("apply_sinks");
}

int64_t sink_gradient_workspace(const SinkShape& shape) {
  return shape.rows * shape.batch * shape.heads * 4;
}

Status sink_gradient(const SinkShape& shape, const void* sinks, const void* out, const void* dout, const float* lse,
                     float* dsinks, bool accumulate, void* workspace, const Launch& launch) {
  const Sinks s = sinks_of(shape, sinks);
  auto* const parts = static_cast<float*>(workspace);
  parts_kernel<<<grid_of(s), kBlock, 0, launch.stream>>>(s, static_cast<const bf16*>(out),
                                                         static_cast<const bf16*>(dout), lse, parts);
  sum_kernel<<<blocks(shape.heads), kBlock, 0, launch.stream>>>(parts, shape.rows * shape.batch, dsinks, accumulate);
  return launched("sink_gradient");
}

}  // namespace mbb::trainer::cuda
