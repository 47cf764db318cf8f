// Kernels of router_product.h with their launches. Experts that are not there have zeros.
#include "trainer/ops/cuda/router_product.h"

#include <algorithm>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256, kMost = 8;
constexpr int64_t kColumns = kBlock * 8;  // of a block whose threads have 8 columns each

__device__ __forceinline__ void load_logits(const float* row, int experts, float (&to)[kMost]) {
#pragma unroll
  for (int e = 0; e < kMost; ++e) to[e] = e < experts ? row[e] : 0.0f;
}

// A warp has four tokens, so that weights are read a quarter as often; its 32 sums end in its 32 lanes.
__global__ void __launch_bounds__(kBlock)
    router_logits_kernel(RouterProduct p, const bf16* x, const bf16* weights, float* logits) {
  constexpr int kTokens = 4;
  const int lane = threadIdx.x & 31, experts = static_cast<int>(p.experts);
  const int64_t first = (int64_t{blockIdx.x} * (kBlock / 32) + (threadIdx.x >> 5)) * kTokens;
  if (first >= p.tokens) return;
  float sum[kTokens][kMost] = {};
#pragma unroll 2
  for (int64_t column = lane * 8; column < p.hidden; column += 256) {
    float value[kTokens][8];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) load8(x + min(first + t, p.tokens - 1) * p.hidden + column, value[t]);
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      if (e >= experts) break;
      float weight[8];
      load8(weights + e * p.hidden + column, weight);
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[t][e] += value[t][i] * weight[i];
    }
  }
  float mine = 0.0f;
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      const float all = warp_sum(sum[t][e]);
      if (lane == t * kMost + e) mine = all;
    }
  const int64_t token = first + lane / kMost;
  if (token < p.tokens && lane % kMost < experts) logits[token * experts + lane % kMost] = mine;
}

__global__ void __launch_bounds__(kBlock, 2)
    router_dgrad_kernel(RouterProduct p, const float* dlogits, const bf16* weights, bf16* dx) {
  const int64_t column = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * 8;
  const int experts = static_cast<int>(p.experts);
  if (column >= p.hidden) return;
  float weight[kMost][8] = {};
#pragma unroll
  for (int e = 0; e < kMost; ++e)
    if (e < experts) load8(weights + e * p.hidden + column, weight[e]);
#pragma unroll 2
  for (int64_t token = blockIdx.y; token < p.tokens; token += gridDim.y) {
    float d[kMost], sum[8] = {};
    load_logits(dlogits + token * experts, experts, d);
#pragma unroll
    for (int e = 0; e < kMost; ++e)
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += d[e] * weight[e][i];
    store8(dx + token * p.hidden + column, sum);
  }
}

// Sums of a run of tokens, [runs, kMost, hidden].
__global__ void __launch_bounds__(kBlock, 2)
    router_wgrad_kernel(RouterProduct p, const float* dlogits, const bf16* x, float* partials) {
  constexpr int kInFlight = 4;
  const int64_t column = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * 8;
  const int experts = static_cast<int>(p.experts);
  if (column >= p.hidden) return;
  const int64_t run = (p.tokens + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * run, end = min(begin + run, p.tokens);
  float sum[kMost][8] = {};
  for (int64_t token = begin; token < end; token += kInFlight) {
    Raw8<bf16> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) raw[u].load(x + min(token + u, end - 1) * p.hidden + column);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (token + u >= end) break;
      float d[kMost], value[8];
      load_logits(dlogits + (token + u) * experts, experts, d);
      raw[u].unpack(value);
#pragma unroll
      for (int e = 0; e < kMost; ++e)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[e][i] += d[e] * value[i];
    }
  }
#pragma unroll
  for (int e = 0; e < kMost; ++e)
    if (e < experts) store8(partials + (int64_t{blockIdx.y} * kMost + e) * p.hidden + column, sum[e]);
}

__global__ void router_wgrad_sum_kernel(RouterProduct p, const float* partials, int64_t runs, float* dweights,
                                        bool accumulate) {
  const int64_t at = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (at >= p.experts * p.hidden) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t r = 0; r < runs; ++r) sum += partials[r * kMost * p.hidden + at];
  dweights[at] = (accumulate ? dweights[at] : 0.0f) + sum;
}

__global__ void __launch_bounds__(kBlock)
    router_split_kernel(const float* x, uint32_t count, uint32_t experts, uint32_t padded, bf16* parts) {
  const uint32_t at = blockIdx.x * kBlock + threadIdx.x;
  if (at >= count) return;
  const uint32_t row = at / padded, e = at - row * padded;
  const float all = e < experts ? x[int64_t{row} * experts + e] : 0.0f;
  const float high = rounded<bf16>(all), middle = rounded<bf16>(all - high);
  bf16* const to = parts + int64_t{row} * 3 * padded + e;
  to[0] = from_float<bf16>(high);
  to[padded] = from_float<bf16>(middle);
  to[2 * padded] = from_float<bf16>(all - high - middle);
}

// In 16-byte pieces.
__global__ void __launch_bounds__(kBlock)
    router_stack_kernel(const uint4* weights, int64_t there, int64_t count, uint4* stack) {
  const int64_t at = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (at >= count) return;
  const uint4 piece = at < there ? weights[at] : uint4{};
#pragma unroll
  for (int part = 0; part < 3; ++part) stack[part * count + at] = piece;
}

// In four sums.
__global__ void __launch_bounds__(kBlock)
    router_sum_parts_kernel(const float4* parts, int64_t part, int64_t count, float4* dweights, bool accumulate) {
  const int64_t at = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (at >= count) return;
  const float4 high = parts[at], middle = parts[at + part], low = parts[at + 2 * part];
  float4 sum = accumulate ? dweights[at] : float4{};
  sum.x += low.x + middle.x + high.x;
  sum.y += low.y + middle.y + high.y;
  sum.z += low.z + middle.z + high.z;
  sum.w += low.w + middle.w + high.w;
  dweights[at] = sum;
}

bool all_aligned(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

int64_t across(const RouterProduct& p) {
  return (p.hidden + kColumns - 1) / kColumns;
}
int64_t runs_of(const RouterProduct& p, const Launch& launch) {
  return std::clamp<int64_t>(launch.sms.count / across(p), 1, std::max<int64_t>(p.tokens / 16, 1));
}

}  // namespace

bool router_product_takes(const RouterProduct& shape, std::initializer_list<const void*> addresses) {
  return shape.tokens > 0 && shape.experts <= kMost && shape.hidden % 8 == 0 && all_aligned(addresses);
}

Status router_logits(const RouterProduct& p, const void* x, const void* weights, float* logits, const Launch& launch) {
  constexpr int64_t kTokens = 4 * (kBlock / 32);
  router_logits_kernel<<<blocks((p.tokens + kTokens - 1) / kTokens), kBlock, 0, launch.stream>>>(
      p, static_cast<const bf16*>(x), static_cast<const bf16*>(weights), logits);
  return launched("router_logits");
}

Status router_dgrad(const RouterProduct& p, const float* dlogits, const void* weights, void* dx, const Launch& launch) {
  const int64_t down = std::clamp<int64_t>(launch.sms.count * 4 / across(p), 1, p.tokens);
  router_dgrad_kernel<<<dim3(blocks(across(p)), blocks(down)), kBlock, 0, launch.stream>>>(
      p, dlogits, static_cast<const bf16*>(weights), static_cast<bf16*>(dx));
  return launched("router_dgrad");
}

int64_t router_wgrad_workspace(const RouterProduct& p, const Launch& launch) {
  return runs_of(p, launch) * kMost * p.hidden * 4;
}

Status router_wgrad(const RouterProduct& p, const float* dlogits, const void* x, float* dweights, bool accumulate,
                    void* workspace, const Launch& launch) {
  const int64_t runs = runs_of(p, launch);
  auto* const partials = static_cast<float*>(workspace);
  router_wgrad_kernel<<<dim3(blocks(across(p)), blocks(runs)), kBlock, 0, launch.stream>>>(
      p, dlogits, static_cast<const bf16*>(x), partials);
  MB_TRY(launched("router_wgrad"));
  router_wgrad_sum_kernel<<<blocks((p.experts * p.hidden + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      p, partials, runs, dweights, accumulate);
  return launched("router_wgrad_sum");
}

int64_t padded_experts(const RouterProduct& p) {
  return (p.experts + 7) / 8 * 8;
}

bool router_parts_take(const RouterProduct& shape, std::initializer_list<const void*> addresses) {
  return shape.tokens > 0 && shape.experts % 4 == 0 && shape.hidden % 8 == 0 &&
         shape.tokens * padded_experts(shape) < int64_t{1} << 31 && all_aligned(addresses);
}

Status router_split_gradients(const RouterProduct& p, const float* dlogits, void* parts, const Launch& launch) {
  const int64_t padded = padded_experts(p), count = p.tokens * padded;
  router_split_kernel<<<blocks((count + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      dlogits, static_cast<uint32_t>(count), static_cast<uint32_t>(p.experts), static_cast<uint32_t>(padded),
      static_cast<bf16*>(parts));
  return launched("router_split_gradients");
}

Status router_stack_weights(const RouterProduct& p, const void* weights, void* stack, const Launch& launch) {
  const int64_t count = padded_experts(p) * p.hidden / 8;
  router_stack_kernel<<<blocks((count + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      static_cast<const uint4*>(weights), p.experts * p.hidden / 8, count, static_cast<uint4*>(stack));
  return launched("router_stack_weights");
}

Status router_sum_parts(const RouterProduct& p, const float* parts, float* dweights, bool accumulate,
                        const Launch& launch) {
  const int64_t count = p.experts * p.hidden / 4;
  router_sum_parts_kernel<<<blocks((count + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      reinterpret_cast<const float4*>(parts), padded_experts(p) * p.hidden / 4, count,
      reinterpret_cast<float4*>(dweights), accumulate);
  return launched("router_sum_parts");
}

}  // namespace mbb::trainer::cuda
