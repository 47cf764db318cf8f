// What the ops of one rank share on its device: the stream, cuBLASLt and cuDNN, scratch, and small constant tables.
//
// Everything is allocated while the first step runs (or when an op case runs); afterwards the pointers stay, so that a
// captured step can be replayed. Not for use from two threads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

class Device {
 public:
  // Opens device `index` for this thread.
  static Result<std::unique_ptr<Device>> open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Launch launch() const { return {stream_, {sms_, 0}}; }
  cudaStream_t stream() const { return stream_; }
  Gemm& gemm() { return *gemm_; }
  void* gemm_workspace() const { return gemm_workspace_; }
  // Times up to 16 algorithms for a problem it has not seen, the best three twice, and chooses the fastest.
  Status tune(const GemmProblem& problem, const GemmBuffers& buffers);
  // cuDNN, opened on first use; nullptr (with the reason in cudnn_reason()) when it is not here.
  CudnnAttention* cudnn();
  const std::string& cudnn_reason() const { return cudnn_reason_; }

  // Scratch for one op, valid until the next op asks. Grows only before a step is captured.
  Result<void*> scratch(int64_t bytes);
  // A constant table of an op, uploaded once; `owner` is its key.
  Result<const void*> constant(const void* owner, std::span<const std::byte> bytes);
  // cos and sin of positions 0 .. seq-1, [seq, head_dim/2, 2].
  Result<const float*> rope_table(int64_t seq, int head_dim, double base);

  // Bytes beside the memory plan's arena: workspaces, scratch, tables.
  int64_t extra_bytes() const { return extra_bytes_; }
  // The same, one by one: what for, and bytes.
  const std::vector<std::pair<std::string, int64_t>>& allocations() const { return allocations_; }

 private:
  Device() = default;
  Result<void*> allocate(int64_t bytes, const char* what);

  cudaStream_t stream_ = nullptr;
  int sms_ = 0;
  std::unique_ptr<Gemm> gemm_;
  void* gemm_workspace_ = nullptr;
  std::unique_ptr<CudnnAttention> cudnn_;
  bool cudnn_tried_ = false;
  std::string cudnn_reason_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  int64_t extra_bytes_ = 0;
  std::vector<std::pair<std::string, int64_t>> allocations_;
  std::set<std::string> tuned_;
  std::map<const void*, void*> constants_;
  std::map<std::tuple<int64_t, int, double>, float*> rope_;
};

}  // namespace mbb::trainer::cuda
