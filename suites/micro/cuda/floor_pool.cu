// Device memory for the floor measurements, filled with normal numbers.
#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::suites {
namespace {

using namespace trainer::cuda;  // NOLINT: this file speaks of nothing else

// Box-Muller on a hash of the index; a pair of normals a thread and step.
__global__ void normal_kernel(bf16* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * 2;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 2; at < count; at += stride) {
    uint64_t x = static_cast<uint64_t>(at) * 0x9e3779b97f4a7c15ull + 0x1234567ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    const float u = (static_cast<float>(x & 0xffffffu) + 1.0f) / 16777217.0f;
    const float angle = static_cast<float>((x >> 32) & 0xffffffu) / 16777216.0f * 6.2831853f;
    const float radius = sqrtf(-2.0f * logf(u));
    *reinterpret_cast<uint32_t*>(to + at) = pack_bf16(radius * cosf(angle), radius * sinf(angle));
  }
}

Status take(char** to, int64_t bytes, const char* what) {
  return ok(cudaMalloc(reinterpret_cast<void**>(to), static_cast<size_t>(bytes)), what);
}

int64_t aligned(int64_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace

Result<std::unique_ptr<FloorPool>> FloorPool::make(int64_t input_bytes, int64_t output_bytes, cudaStream_t stream,
                                                   const Launch& launch) {
  auto pool = std::unique_ptr<FloorPool>(new FloorPool());
  pool->input_bytes_ = input_bytes;
  pool->output_bytes_ = output_bytes;
  MB_TRY(take(&pool->bf16_, input_bytes, "allocating inputs"));
  MB_TRY(take(&pool->e4m3_, input_bytes / 2, "allocating E4M3 inputs"));
  MB_TRY(take(&pool->e5m2_, input_bytes / 2, "allocating E5M2 inputs"));
  MB_TRY(take(&pool->output_, output_bytes, "allocating outputs"));
  MB_TRY(take(&pool->scratch_, kScratch, "allocating scratch"));
  MB_TRY(take(&pool->workspace_, kGemmWorkspace, "allocating the GEMM workspace"));
  char* scales = nullptr;
  MB_TRY(take(&scales, 4096, "allocating scales"));
  pool->scales_ = reinterpret_cast<float*>(scales);
  normal_kernel<<<2112, 256, 0, stream>>>(reinterpret_cast<bf16*>(pool->bf16_), input_bytes / 2);
  MB_TRY(launched("normal"));
  MB_TRY(fill(Element::kF32, 1.0f, pool->scales_, 1024, launch));
  MB_TRY(ok(cudaMemsetAsync(pool->output_, 0, static_cast<size_t>(output_bytes), stream), "clearing outputs"));
  MB_TRY(ok(cudaMemsetAsync(pool->scratch_, 0, kScratch, stream), "clearing scratch"));
  // FP8 inputs: the same numbers quantized tensorwise.
  auto* amax = reinterpret_cast<float*>(pool->scratch_);
  Quantize q;
  q.shape = {input_bytes / 2 / 4096, 4096}, q.amax = amax, q.inverse_scale = amax + 1, q.q = pool->e4m3_;
  MB_TRY(amax_of(Element::kBf16, pool->bf16_, input_bytes / 2, amax, launch));
  MB_TRY(quantize(q, pool->bf16_, launch));
  q.to = Element::kE5m2, q.q = pool->e5m2_;
  MB_TRY(quantize(q, pool->bf16_, launch));
  MB_TRY(ok(cudaStreamSynchronize(stream), "filling the pool"));
  return pool;
}

FloorPool::~FloorPool() {
  for (void* p :
       {static_cast<void*>(bf16_), static_cast<void*>(e4m3_), static_cast<void*>(e5m2_), static_cast<void*>(output_),
        static_cast<void*>(scratch_), static_cast<void*>(workspace_), static_cast<void*>(scales_)})
    cudaFree(p);
}

const void* FloorPool::input(Element element, int64_t count) {
  const bool half = element == Element::kBf16;
  int64_t& at = half ? bf16_at_ : fp8_at_;
  const int64_t bytes = aligned(count * bytes_of(element)), limit = half ? input_bytes_ : input_bytes_ / 2;
  if (at + bytes > limit) at = 0;
  const char* base = half ? bf16_ : element == Element::kE4m3 ? e4m3_ : e5m2_;
  const void* place = base + at;
  at += bytes;
  return place;
}

void* FloorPool::output(int64_t bytes) {
  bytes = aligned(bytes);
  if (output_at_ + bytes > output_bytes_) output_at_ = 0;
  void* place = output_ + output_at_;
  output_at_ += bytes;
  return place;
}

}  // namespace mbb::suites
