// Attention on packed projections: our own flash kernel and cuDNN's, with one argument form.
//
// qkv is [s, b, packed_row()] bf16 ([q heads | k heads | v heads], value heads of a width of their own), out and dout
// [s, b, out_row()], dqkv like qkv, lse [b, heads, s] fp32 (natural log of the softmax sum, scale included). Where keys
// stand apart (shape.keys), which cuDNN alone takes, qkv holds queries, [s, b, query_row()], and kv [keys, b,
// key_row()]; dqkv and dkv likewise.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// What may compute an attention: cuDNN, our tensor-core kernel, or the general one that knows every form.
enum class AttentionKernel { kCudnn, kFlash, kGeneral };

// Where the sequences of a pack lie (packs.h), of batch 1: our kernel reads the rows of each query's sequence, cuDNN
// the starts, shape.packs of them.
struct AttentionPacks {
  const int32_t* own = nullptr;   // [seq], first token of a token's sequence
  const int32_t* past = nullptr;  // [seq], one behind its last
  const int32_t* starts = nullptr;
};

struct AttentionForward {
  AttentionShape shape;
  float scale = 0.0f;  // of the scores; usually 1 / sqrt(head_dim)
  const void* qkv = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  AttentionPacks packs = {};
  const void* kv = nullptr;
  const void* bias = nullptr;  // of shape.bias (position_bias.h)
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
  AttentionPacks packs = {};
  const void* kv = nullptr;
  void* dkv = nullptr;
  int64_t lse_rows = 0;  // of a head, which lse may have more of than there are queries: it points at the first one's
  const void* bias = nullptr;
  void* dbias = nullptr;  // as bias, summed over the batch; zero before
};

// Our own kernel: mma on tensor cores, deterministic, head dimensions 64 and 128; packs and windows skip the keys that
// no query of a block sees.
Status flash_forward(const AttentionForward& args, cudaStream_t stream);
int64_t flash_backward_workspace(const AttentionShape& shape);  // delta [b, heads, s] fp32
Status flash_backward(const AttentionBackward& args, cudaStream_t stream);

// cuDNN's fused attention: bf16, grouped heads, causal or not, sliding windows, narrower values, packs, a bias. Plans
// are cached by shape, those of packs by the most sequences they hold, whatever the sequences' lengths. make() fails
// with the reason when this build or machine lacks it.
class CudnnAttention {
 public:
  static Result<std::unique_ptr<CudnnAttention>> make();
  virtual ~CudnnAttention() = default;
  // Bytes that the forward or the backward needs, or why cuDNN does not compute it.
  virtual Result<int64_t> workspace(const AttentionShape& shape, float scale, bool deterministic, bool backward) = 0;
  virtual Status forward(const AttentionForward& args, void* workspace, cudaStream_t stream) = 0;
  virtual Status backward(const AttentionBackward& args, bool deterministic, cudaStream_t stream) = 0;
  virtual size_t version() const = 0;  // as 91900
};

}  // namespace mbb::trainer::cuda
