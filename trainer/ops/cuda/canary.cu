// The chain, the copy, their best times, and the time of chains in a queue.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <limits>

#include "profiler/base/clock.h"
#include "trainer/ops/cuda/canary.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBatches = 5;
constexpr int kRepetitions = 3;           // of a batch
constexpr int kChain = 500'000;           // dependent multiply-adds, about 1 ms
constexpr size_t kCopyBytes = 128 << 20;  // more than the L2 cache holds
constexpr int64_t kWarmUpNs = 30'000'000;
constexpr int kQueued = 24;  // chains, about 27 ms: many time slices of a GPU that processes share
constexpr int kQueues = 3;   // odd: the median is one of them

__global__ void chain_kernel(float* out, float factor) {
  float x = static_cast<float>(threadIdx.x);
#pragma unroll 16
  for (int i = 0; i < kChain; ++i) x = fmaf(x, factor, 0.5f);
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

__global__ void copy_kernel(const float4* from, float4* to, size_t count) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = from[i];
}

// What the canary holds on the device; given back whatever happens.
class Bench {
 public:
  Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaFree(from_);
    cudaFree(to_);
  }

  Status open(int device) {
    constexpr const char* kDoing = "preparing the canary";
    MB_TRY(ok(cudaSetDevice(device), kDoing));
    MB_TRY(ok(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device), kDoing));
    MB_TRY(ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kDoing));
    MB_TRY(ok(cudaEventCreate(&begin_), kDoing));
    MB_TRY(ok(cudaEventCreate(&end_), kDoing));
    MB_TRY(ok(cudaMalloc(&from_, kCopyBytes), kDoing));
    MB_TRY(ok(cudaMalloc(&to_, kCopyBytes), kDoing));
    return ok(cudaMemsetAsync(from_, 0, kCopyBytes, stream_), kDoing);
  }

  Status multiply() {
    chain_kernel<<<sms_, 32, 0, stream_>>>(static_cast<float*>(to_), 0.999f);
    return launched("canary chain");
  }
  Status copy() {
    copy_kernel<<<8 * sms_, 256, 0, stream_>>>(static_cast<const float4*>(from_), static_cast<float4*>(to_),
                                               kCopyBytes / sizeof(float4));
    return launched("canary copy");
  }

  // Best of all repetitions, and from the fastest batch to the slowest.
  template <typename Work>
  Status time(const Work& work, int64_t* best_ns, int64_t* spread_ns) {
    for (const int64_t began = monotonic_ns(); monotonic_ns() - began < kWarmUpNs;) {
      int64_t warm = 0;
      MB_TRY(once(work, &warm));
    }
    int64_t best = std::numeric_limits<int64_t>::max(), slowest = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      int64_t of_batch = std::numeric_limits<int64_t>::max();
      for (int i = 0; i < kRepetitions; ++i) {
        int64_t ns = 0;
        MB_TRY(once(work, &ns));
        of_batch = std::min(of_batch, ns);
      }
      best = std::min(best, of_batch), slowest = std::max(slowest, of_batch);
    }
    *best_ns = best, *spread_ns = slowest - best;
    return {};
  }

  // A piece's time where many wait in a queue: the median of the queues, and from the fastest to the slowest.
  template <typename Work>
  Status time_queued(const Work& work, int64_t* median_ns, int64_t* spread_ns) {
    std::array<int64_t, kQueues> pieces{};
    for (int64_t& ns : pieces) {
      MB_TRY(once(work, &ns, kQueued));
      ns /= kQueued;
    }
    std::sort(pieces.begin(), pieces.end());
    *median_ns = pieces[kQueues / 2], *spread_ns = pieces.back() - pieces.front();
    return {};
  }

 private:
  template <typename Work>
  Status once(const Work& work, int64_t* ns, int count = 1) {
    float ms = 0;
    MB_TRY(ok(cudaEventRecord(begin_, stream_), "timing the canary"));
    for (int i = 0; i < count; ++i) MB_TRY(work());
    MB_TRY(ok(cudaEventRecord(end_, stream_), "timing the canary"));
    MB_TRY(ok(cudaEventSynchronize(end_), "timing the canary"));
    MB_TRY(ok(cudaEventElapsedTime(&ms, begin_, end_), "timing the canary"));
    *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
    return {};
  }

  int sms_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void *from_ = nullptr, *to_ = nullptr;
};

}  // namespace

Result<profiler::CudaCanary> canary(int device) {
  Bench bench;
  MB_TRY(bench.open(device));
  profiler::CudaCanary times{};
  MB_TRY(bench.time([&] { return bench.multiply(); }, &times.arithmetic_ns, &times.arithmetic_spread_ns));
  MB_TRY(bench.time_queued([&] { return bench.multiply(); }, &times.share_ns, &times.share_spread_ns));
  MB_TRY(bench.time([&] { return bench.copy(); }, &times.memory_ns, &times.memory_spread_ns));
  return times;
}

}  // namespace mbb::trainer::cuda
