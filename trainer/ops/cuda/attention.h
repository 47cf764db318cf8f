// Attention on packed projections: our own flash kernel and cuDNN's, with one argument form.
//
// qkv is [s, b, packed_row()] bf16 ([q heads | k heads | v heads], value heads of a width of their own), out and dout
// [s, b, out_row()], dqkv like qkv, lse [b, heads, s] fp32 (natural log of the softmax sum, scale included).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// What may compute an attention: cuDNN, our tensor-core kernel, or the general one that knows every form.
enum class AttentionKernel { kCudnn, kFlash, kGeneral };

struct AttentionForward {
  AttentionShape shape;
  float scale = 0.0f;  // of the scores; usually 1 / sqrt(head_dim)
  const void* qkv = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const int32_t* own = nullptr;  // packs, of our own kernel alone: [seq], first token of a query's sequence; batch 1
};

struct AttentionBackward {
  AttentionShape shape;
  float scale = 0.0f;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const void* dout = nullptr;
  const float* lse = nullptr;
  void* dqkv = nullptr;
  void* workspace = nullptr;
  const int32_t* own = nullptr;
};

// Our own kernel: mma on tensor cores, deterministic, head dimensions 64 and 128; causal packs and windows skip the
// keys that no query of a block sees.
Status flash_forward(const AttentionForward& args, cudaStream_t stream);
int64_t flash_backward_workspace(const AttentionShape& shape);  // delta [b, heads, s] fp32
Status flash_backward(const AttentionBackward& args, cudaStream_t stream);

// cuDNN's fused attention: bf16, grouped heads, causal or not, sliding windows, narrower values. Plans are cached by
// shape. make() fails
// with the reason when this build or machine lacks it.
class CudnnAttention {
 public:
  static Result<std::unique_ptr<CudnnAttention>> make();
  virtual ~CudnnAttention() = default;
  virtual Result<int64_t> workspace(const AttentionShape& shape, float scale, bool deterministic) = 0;
  virtual Status forward(const AttentionForward& args, void* workspace, cudaStream_t stream) = 0;
  virtual Status backward(const AttentionBackward& args, bool deterministic, cudaStream_t stream) = 0;
  virtual size_t version() const = 0;  // as 91900
};

}  // namespace mbb::trainer::cuda
