// Attention taken apart (trainer/ops/unfused.cpp): scores, scale and mask, softmax, context, with the fp32 matrix of
// weights [b, heads, s, s] in memory. One thread an element, every sum in a fixed order: attention_backend = unfused.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

struct UnfusedAttention {
  Element element = Element::kBf16;  // of qkv, its gradient and the output
  const AttentionAttrs* attrs = nullptr;
  int64_t batch = 1, seq = 0;
  const void* qkv = nullptr;         // packed [s, b, ...]
  const int32_t* own = nullptr;      // [s]: first token of a query's own sequence; null: all one
  const int32_t* samples = nullptr;  // dropout: [b]
  const float* record = nullptr;     // dropout: the step record
  int64_t first_head = 0;            // of all ranks' heads, for dropout's numbers
};

Status attention_scores(const UnfusedAttention& args, float* scores, const Launch& launch);
// dqkv is written whole: zero for the values.
Status attention_scores_grad(const UnfusedAttention& args, const float* dscores, void* dqkv, const Launch& launch);
// y = scale * x where the query sees the key, else `masked`.
Status scale_mask(const UnfusedAttention& args, const float* x, float masked, float* y, const Launch& launch);
// Rows of the matrix; with `masks` scale and mask come first.
Status matrix_softmax(const UnfusedAttention& args, const float* x, bool masks, float* y, const Launch& launch);
// dx = scale * p * (dp - sum of dp * p).
Status matrix_softmax_grad(const UnfusedAttention& args, const float* dp, const float* p, float scale, float* dx,
                           const Launch& launch);
Status attention_context(const UnfusedAttention& args, const float* weights, void* out, const Launch& launch);
// dqkv is written whole: zero for queries and keys.
Status attention_context_grad(const UnfusedAttention& args, const void* dout, const float* weights, float* dweights,
                              void* dqkv, const Launch& launch);

}  // namespace mbb::trainer::cuda
