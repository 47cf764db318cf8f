// A thread eight keys of a bias; of its gradient, a thread a distance, so that neighbours read neighbours.
#include "trainer/ops/cuda/position_bias.h"

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;
constexpr int64_t kChunks = 8;  // of the queries, each summed by a block of its own

struct Bias {
  PositionBias b;
  int64_t row;

  __device__ int bucket(int64_t query, int64_t key) const { return b.buckets[key - query + b.queries - 1]; }
};

// Grid: eights of keys, queries, heads.
__global__ void __launch_bounds__(kBlock) spread_kernel(Bias a, const bf16* table, bf16* bias) {
  const int64_t first = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * 8, query = blockIdx.y, head = blockIdx.z;
  if (first >= a.row) return;
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    x[i] = first + i < a.b.keys ? to_float(table[head * a.b.bucket_count + a.bucket(query, first + i)]) : 0.0f;
  store8(bias + (head * a.b.queries + query) * a.row + first, x);
}

// Grid: distances, heads, chunks of queries. parts [chunks, heads, distances].
__global__ void __launch_bounds__(kBlock) by_distance_kernel(Bias a, const bf16* dbias, float* parts) {
  const int64_t distances = a.b.queries + a.b.keys - 1, at = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (at >= distances) return;
  const int64_t head = blockIdx.y, chunk = blockIdx.z, distance = at - (a.b.queries - 1);
  const int64_t rows = (a.b.queries + kChunks - 1) / kChunks;
  const int64_t begin = max(chunk * rows, -distance);
  const int64_t end = min(min((chunk + 1) * rows, a.b.queries), a.b.keys - distance);
  float sum = 0.0f;
  if (!a.b.causal || distance <= 0) {
    const bf16* const from = dbias + head * a.b.queries * a.row + distance;
#pragma unroll 8
    for (int64_t query = begin; query < end; ++query) sum += to_float(from[query * (a.row + 1)]);
  }
  parts[(chunk * gridDim.y + head) * distances + at] = sum;
}

// A block an element of the table.
__global__ void __launch_bounds__(kBlock) by_bucket_kernel(Bias a, const float* parts, float* dtable, bool accumulate) {
  __shared__ float scratch[32];
  const int64_t distances = a.b.queries + a.b.keys - 1;
  const int64_t head = blockIdx.x / a.b.bucket_count, bucket = blockIdx.x % a.b.bucket_count;
  float sum = 0.0f;
  for (int64_t at = threadIdx.x; at < distances; at += kBlock)
    if (a.b.buckets[at] == bucket)
      for (int64_t chunk = 0; chunk < kChunks; ++chunk) sum += parts[(chunk * a.b.heads + head) * distances + at];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) dtable[blockIdx.x] = (accumulate ? dtable[blockIdx.x] : 0.0f) + sum;
}

Bias with_row(const PositionBias& b) {
  return {b, position_bias_row(b.keys)};
}

}  // namespace

int64_t position_bias_row(int64_t keys) {
  return (keys + 7) / 8 * 8;
}

int64_t position_bias_bytes(int64_t heads, int64_t queries, int64_t keys) {
  return heads * queries * position_bias_row(keys) * 2;
}

Status spread_position_bias(const PositionBias& b, const void* table, void* bias, const Launch& launch) {
  const Bias a = with_row(b);
  const dim3 grid(blocks((a.row / 8 + kBlock - 1) / kBlock), blocks(b.queries), blocks(b.heads));
  spread_kernel<<<grid, kBlock, 0, launch.stream>>>(a, static_cast<const bf16*>(table), static_cast<bf16*>(bias));
  return launched("spread_position_bias");
}

int64_t position_bias_workspace(const PositionBias& b) {
  return kChunks * b.heads * (b.queries + b.keys - 1) * 4;
}

Status gather_position_bias(const PositionBias& b, const void* dbias, float* dtable, bool accumulate, void* workspace,
                            const Launch& launch) {
  const Bias a = with_row(b);
  auto* const parts = static_cast<float*>(workspace);
  const dim3 grid(blocks((b.queries + b.keys - 1 + kBlock - 1) / kBlock), blocks(b.heads), blocks(kChunks));
  by_distance_kernel<<<grid, kBlock, 0, launch.stream>>>(a, static_cast<const bf16*>(dbias), parts);
  by_bucket_kernel<<<blocks(b.heads * b.bucket_count), kBlock, 0, launch.stream>>>(a, parts, dtable, accumulate);
  return launched("gather_position_bias");
}

}  // namespace mbb::trainer::cuda
