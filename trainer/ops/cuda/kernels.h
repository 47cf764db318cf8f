// Front door of our own CUDA kernels: plain argument structs and one launch function each; all pointers are on the
// device.
//
// Every launch is asynchronous on the given stream, allocates nothing, reads no value on the host and may be captured
// in a graph. Rows are tokens in [s, b] order; the innermost dimension is contiguous; pointers are 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::trainer::cuda {

// Where and how wide to launch.
struct Launch {
  cudaStream_t stream = nullptr;
  Sms sms;
  int confined_sms = 0;  // > 0: memory-bound kernels run beside other work and take about this many SMs
};

// Norms: RMSNorm, or LayerNorm when `layer` (mean and bias then needed).
struct NormForward {
  RowShape shape;
  Element element = Element::kBf16;  // of x, residual, sum, weight, bias, y
  bool layer = false;
  float eps = 1e-5f;
  float weight_offset = 0.0f;  // multiplies by offset + weight
  const void* x = nullptr;
  const void* residual = nullptr;  // optional: x + residual is what gets normalized ...
  void* sum = nullptr;             // ... and written here
  const void* weight = nullptr;    // [cols]
  const void* bias = nullptr;      // [cols], LayerNorm only
  void* y = nullptr;               // optional: without it only the statistics and amax are made
  float* mean = nullptr;           // [rows], LayerNorm only
  float* rstd = nullptr;           // [rows]
  float* amax = nullptr;           // optional: raised to the largest |y|; the caller zeroes it
};
Status norm_forward(const NormForward& args, const Launch& launch);

struct NormBackward {
  RowShape shape;
  Element element = Element::kBf16;
  bool layer = false;
  float weight_offset = 0.0f;
  const void* x = nullptr;  // what was normalized
  const void* dy = nullptr;
  const void* dresidual = nullptr;  // optional gradient of the sum, added to dx
  const void* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;
  float* partials = nullptr;  // norm_backward_partials() bytes of workspace
  float* dweight = nullptr;   // [cols] fp32
  float* dbias = nullptr;     // [cols] fp32, LayerNorm only
  bool accumulate = false;    // add to dweight and dbias instead of overwriting them
  float* amax = nullptr;      // optional: raised to the largest |dx|
};
int64_t norm_backward_partials(RowShape shape, bool layer, Sms sms);
Status norm_backward(const NormBackward& args, const Launch& launch);

// Element-wise.
// y = a + b; y = x * *scale (a device scalar); y = value; y = x converted.
Status add(Element element, const void* a, const void* b, void* y, int64_t count, const Launch& launch);
Status scale_by(Element element, const void* x, const float* scale, void* y, int64_t count, const Launch& launch);
Status fill(Element element, float value, void* y, int64_t count, const Launch& launch);
Status cast(Element from, const void* x, Element to, void* y, int64_t count, const Launch& launch);

// Gated activation: [rows, 2*cols] = [gate | up] -> silu(gate) * up, [rows, cols]; its backward writes [dgate | dup].
Status swiglu_forward(Element element, RowShape shape, const void* gate_up, void* y, const Launch& launch);
Status swiglu_backward(Element element, RowShape shape, const void* gate_up, const void* dy, void* dgate_up,
                       const Launch& launch);

// Rotary embedding of `heads` heads of packed rows [tokens, width]: half-split pairs (i, i + turned/2), or interleaved
// ones (2i, 2i + 1), of the elements from `offset` on. table: [seq, turned/2, 2] fp32 (cos, sin); token t of [s, b]
// order has position t / batch, of a pack t - own[t], where own is the first token of each token's sequence. backward
// rotates the other way.
struct Rope {
  Element element = Element::kBf16;
  int64_t tokens = 0;
  int64_t batch = 1;
  int64_t width = 0;  // of a token
  int first_head = 0, heads = 1, head_dim = 128;
  int offset = 0, turned = 128;
  const void* from = nullptr;
  void* to = nullptr;  // `from`, or apart from it when whole heads turn: then the other heads are copied
  const float* table = nullptr;
  const int32_t* own = nullptr;  // [tokens] of a pack, whose batch is 1
  bool backward = false, interleaved = false;
};
// Whether the places of a token divide into 16-byte vectors.
bool rope_takes(const Rope& args);
Status rope(const Rope& args, const Launch& launch);
// Fills the table for positions 0 .. seq-1: angle = position * base^(-2i/d).
Status rope_table(float* table, int64_t seq, int head_dim, double base, const Launch& launch);

// Embedding: rows of `table` [vocab, cols] by token; ids outside [first, first + vocab) give zeros
// (vocab-parallel).
struct Embedding {
  Element element = Element::kBf16;  // of table, y, dy
  Element gradient = Element::kF32;  // of dtable
  int64_t tokens = 0;
  int64_t cols = 0;
  int64_t vocab = 0;
  int64_t first = 0;
  const int32_t* ids = nullptr;
};
Status embedding_forward(const Embedding& args, const void* table, void* y, const Launch& launch);
// dtable[id] += sum of the id's dy rows in token order, summed in fp32, deterministic. workspace:
// embedding_workspace(tokens + vocab) bytes.
int64_t embedding_workspace(int64_t entries);
Status embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch);

// Cross entropy over a slice [first, first + vocab) of the vocabulary; logits [rows, vocab] bf16 or fp32.
struct CrossEntropy {
  Element element = Element::kBf16;
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t first = 0;
  int64_t real_vocab = 0;  // columns from real_vocab on are padding and count as -inf; 0: all are real
  bool scalar = false;     // rows are not 16-byte vectors (any vocab, any alignment)
  const void* logits = nullptr;
  void* gradient = nullptr;          // may be logits: in place
  const int32_t* targets = nullptr;  // a target < 0 is ignored: loss 0, gradient 0
};
// Pieces for a vocabulary split over ranks: max[rows]; then, with the global max, sums of exp and the target's logit
// minus max (0 where another rank holds it).
Status ce_row_max(const CrossEntropy& args, float* max, const Launch& launch);
Status ce_sum_exp(const CrossEntropy& args, const float* max, float* sum_exp, float* target_logit,
                  const Launch& launch);
// total[0] (+)= sum of log(sum_exp) - target_logit over rows with a target, total[1] (+)= their count; fixed order,
// doubles.
Status ce_loss(const float* sum_exp, const float* target_logit, const int32_t* targets, int64_t rows, double* total,
               bool accumulate, const Launch& launch);
// gradient = softmax - onehot, from the global max and sum.
Status ce_gradient(const CrossEntropy& args, const float* max, const float* sum_exp, const Launch& launch);
// ce_row_max, ce_sum_exp and ce_gradient in one kernel, when this rank holds the whole vocabulary.
Status ce_fused(const CrossEntropy& args, float* sum_exp, float* target_logit, const Launch& launch);

// FP8 tensorwise quantization. amax and scale are device scalars; scale = max / amax, inverse_scale is what the
// GEMM reads. amax 0, infinite or NaN gives scale 1. q [rows, cols] and qt [cols, rows], either may be null.
struct Quantize {
  Element to = Element::kE4m3;
  RowShape shape;
  const float* amax = nullptr;
  const float* scale = nullptr;  // delayed scaling: given, instead of following from amax
  float* found_amax = nullptr;   // optional: raised to the largest magnitude seen; the caller zeroes it
  float* inverse_scale = nullptr;
  void* q = nullptr;
  void* qt = nullptr;
  void* partials = nullptr;  // of the forms `once`
};
Status amax_of(Element element, const void* x, int64_t count, float* amax, const Launch& launch);
Status quantize(const Quantize& args, const void* x, const Launch& launch);
// The producer is computed again instead of stored: norm output from x and statistics, SwiGLU from [gate | up], its
// backward too.
Status quantize_norm(const Quantize& args, const void* x, const float* rstd, const void* weight, const Launch& launch);
Status swiglu_amax(RowShape shape, const void* gate_up, float* amax, const Launch& launch);
Status quantize_swiglu(const Quantize& args, const void* gate_up, const Launch& launch);
Status swiglu_backward_amax(RowShape shape, const void* gate_up, const void* dy, float* amax, const Launch& launch);
// shape is of dy; q is [rows, 2*cols], qt [2*cols, rows].
Status quantize_swiglu_backward(const Quantize& args, const void* gate_up, const void* dy, const Launch& launch);
// The largest magnitude and the quantization in one launch, which writes found_amax and follows it; amax and scale are
// not read. Its blocks wait for each other, so that nothing else on the device may wait for what this stream does
// later. `partials` has quantize_once_partials() bytes; 0: this device has no such launch.
int64_t quantize_once_partials(const Launch& launch);
Status quantize_once(const Quantize& args, const void* x, const Launch& launch);
// An RMSNorm's output, with norm.rstd written on the way: where all of it fits on the chip, or rows and columns divide
// into tiles.
bool quantize_norm_once_fits(RowShape shape, const Launch& launch);
Status quantize_norm_once(const Quantize& args, const NormForward& norm, const Launch& launch);
Status quantize_swiglu_once(const Quantize& args, const void* gate_up, const Launch& launch);
Status quantize_swiglu_backward_once(const Quantize& args, const void* gate_up, const void* dy, const Launch& launch);

}  // namespace mbb::trainer::cuda
