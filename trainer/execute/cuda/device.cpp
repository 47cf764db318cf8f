// Opening a device and its shared allocations.
#include "trainer/execute/cuda/device.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/check.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr const char* kScratch = "scratch memory of an op";

}  // namespace

Result<std::unique_ptr<Device>> Device::open(int index) {
  MB_TRY(ok(cudaSetDevice(index), "choosing the CUDA device"));
  auto device = std::unique_ptr<Device>(new Device());
  int major = 0;
  MB_TRY(ok(cudaDeviceGetAttribute(&device->sms_, cudaDevAttrMultiProcessorCount, index), "reading the SM count"));
  MB_TRY(
      ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "reading the compute capability"));
  if (major != 9)
    return fail(ErrorCode::kUnavailable,
                fmt::format("CUDA device {} has compute capability {}.x; this build is for 9.0", index, major),
                "configure with MBB_CUDA_GENCODE for this device, or use host.device = cpu");
  MB_TRY(ok(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "creating the compute stream"));
  MB_ASSIGN(device->gemm_, Gemm::make());
  MB_ASSIGN(device->gemm_workspace_, device->allocate(kGemmWorkspace, "the GEMM workspace"));
  return device;
}

Device::~Device() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (auto& [key, table] : rope_) cudaFree(table);
  for (auto& [key, table] : constants_) cudaFree(table);
  cudaFree(scratch_);
  cudaFree(gemm_workspace_);
  cudnn_.reset();
  gemm_.reset();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Result<void*> Device::allocate(int64_t bytes, const char* what) {
  void* data = nullptr;
  MB_TRY(ok(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 16))), what));
  extra_bytes_ += bytes;
  allocations_.emplace_back(what, bytes);
  return data;
}

Status Device::tune(const GemmProblem& problem, const GemmBuffers& buffers) {
  if (!tuned_.insert(key(problem)).second) return {};
  MB_ASSIGN(const auto candidates, gemm_->candidates(problem, 16));
  cudaEvent_t start = nullptr, end = nullptr;
  MB_TRY(ok(cudaEventCreate(&start), "timing GEMM algorithms"));
  MB_TRY(ok(cudaEventCreate(&end), "timing GEMM algorithms"));
  const auto time = [&](const GemmCandidate& candidate, int calls) -> Result<float> {
    MB_TRY(gemm_->choose(problem, candidate.algorithm));
    MB_TRY(ok(cudaEventRecord(start, stream_), "timing GEMM algorithms"));
    for (int i = 0; i < calls; ++i) MB_TRY(gemm_->run(problem, buffers, stream_));
    MB_TRY(ok(cudaEventRecord(end, stream_), "timing GEMM algorithms"));
    MB_TRY(ok(cudaEventSynchronize(end), "timing GEMM algorithms"));
    float ms = 0.0f;
    MB_TRY(ok(cudaEventElapsedTime(&ms, start, end), "timing GEMM algorithms"));
    return ms / static_cast<float>(calls);
  };
  std::vector<std::pair<float, size_t>> ranked;
  for (size_t i = 0; i < candidates.size(); ++i) {
    MB_ASSIGN(const float first, time(candidates[i], 1));
    MB_ASSIGN(const float ms, time(candidates[i], std::clamp(static_cast<int>(5.0f / std::max(first, 1e-3f)), 2, 50)));
    ranked.emplace_back(ms, i);
  }
  std::sort(ranked.begin(), ranked.end());
  ranked.resize(std::min<size_t>(ranked.size(), 3));
  // Long enough for the card to reach its power limit, where it spends a step: a burst prefers other algorithms.
  for (auto& [ms, i] : ranked) {
    MB_ASSIGN(ms, time(candidates[i], std::clamp(static_cast<int>(90.0f / std::max(ms, 1e-3f)), 4, 1000)));
  }
  std::sort(ranked.begin(), ranked.end());
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return gemm_->choose(problem, candidates[ranked.front().second].algorithm);
}

CudnnAttention* Device::cudnn() {
  if (!cudnn_tried_) {
    cudnn_tried_ = true;
    if (auto opened = CudnnAttention::make())
      cudnn_ = std::move(*opened);
    else
      cudnn_reason_ = opened.error().what;
  }
  return cudnn_.get();
}

Result<void*> Device::scratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  MB_TRY(ok(cudaStreamIsCapturing(stream_, &capturing), "growing scratch memory"));
  MB_CHECK(capturing == cudaStreamCaptureStatusNone, "scratch memory grows while a step is captured");
  MB_TRY(ok(cudaStreamSynchronize(stream_), "growing scratch memory"));
  MB_TRY(ok(cudaFree(scratch_), "growing scratch memory"));
  extra_bytes_ -= scratch_bytes_;
  std::erase_if(allocations_, [](const auto& one) { return one.first == kScratch; });
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  MB_ASSIGN(scratch_, allocate(bytes, kScratch));
  scratch_bytes_ = bytes;
  return scratch_;
}

Result<const void*> Device::constant(const void* owner, std::span<const std::byte> bytes) {
  if (const auto at = constants_.find(owner); at != constants_.end()) return static_cast<const void*>(at->second);
  MB_ASSIGN(void* const table, allocate(static_cast<int64_t>(bytes.size()), "a constant table of an op"));
  constants_[owner] = table;
  MB_TRY(ok(cudaMemcpyAsync(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
            "uploading a constant table"));
  MB_TRY(ok(cudaStreamSynchronize(stream_), "uploading a constant table"));
  return static_cast<const void*>(table);
}

Result<const float*> Device::rope_table(int64_t seq, int head_dim, double base) {
  auto& table = rope_[{seq, head_dim, base}];
  if (table == nullptr) {
    MB_ASSIGN(void* const fresh, allocate(seq * head_dim * 4, "a rotary table"));
    table = static_cast<float*>(fresh);
    MB_TRY(cuda::rope_table(table, seq, head_dim, base, launch()));
  }
  return static_cast<const float*>(table);
}

}  // namespace mbb::trainer::cuda
