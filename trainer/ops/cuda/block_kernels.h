// Kernels of the blocks that families besides Llama use: biases, learned positions, norms of heads, activations,
// dropout, rotary positions of any kind. Any shape and alignment; sums over rows run in a
// fixed order. Layouts are those of trainer/ops/attrs.h; all pointers are on the device.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// y = x + scale * bias[cols]; x and y are of one type, the bias of its own (logits in fp32 under a weight in bf16).
Status bias_add(Element element, RowShape shape, const void* x, Element of_bias, const void* bias, float scale, void* y,
                const Launch& launch);
// y = a + b, b in bf16; y may be a. 16-byte aligned.
Status add_bf16(const float* a, const void* b, float* y, int64_t count, const Launch& launch);
// out[cols] (+)= scale * column sums of x, over partial sums in the workspace.
int64_t column_sums_workspace(RowShape shape);
Status column_sums(Element element, RowShape shape, const void* x, float scale, float* out, bool accumulate,
                   void* workspace, const Launch& launch);

// Learned positions: hidden states [s, b, h], table rows from `first` on.
struct Positions {
  Element element = Element::kBf16;
  int64_t seq = 0, batch = 1, hidden = 0;
  int64_t first = 0;
  int64_t rows = 0;              // of the table
  const int32_t* at = nullptr;   // a part of the sequence: [first + seq], where a row lies; null: where it is counted
  const int32_t* own = nullptr;  // packed: [first + seq], first token of a token's own sequence
  const int32_t* starts = nullptr;  // packed: [sequences]
  int64_t sequences = 0;
};
Status position_add(const Positions& args, const void* x, const void* table, void* y, const Launch& launch);
// dtable [rows, hidden]: rows the sequence does not reach keep their value, or become zero without `accumulate`.
Status position_grad(const Positions& args, const void* dy, float* dtable, bool accumulate, const Launch& launch);

// RMS norm of the first heads + kv_heads heads of packed qkv [tokens, width].
struct HeadNorm {
  Element element = Element::kBf16;
  int64_t tokens = 0, width = 0;
  int heads = 1, kv_heads = 1, head_dim = 64;
  float eps = 1e-6f;
  const void* x = nullptr;
  const void* query_weight = nullptr;
  const void* key_weight = nullptr;
  float* inverse = nullptr;  // [tokens, heads + kv_heads]
};
Status head_norm_forward(const HeadNorm& args, void* y, const Launch& launch);
int64_t head_norm_workspace(const HeadNorm& args);
Status head_norm_backward(const HeadNorm& args, const void* dy, void* dx, float* dquery, float* dkey, bool accumulate,
                          void* workspace, const Launch& launch);

// x is [rows, cols], or [rows, 2*cols] = [gate | up] for gated functions.
Status activation_forward(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, void* y,
                          const Launch& launch);
Status activation_backward(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, const void* dy,
                           void* dx, const Launch& launch);
// The same of x + bias[columns of x]: y without dy, else the gradient of x + bias.
Status bias_activation(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, const void* bias,
                       const void* dy, void* out, const Launch& launch);

// x [s, b, h]; sequence positions begin at `first`, or are at[first], at[first + 1], ...
struct Dropout {
  Element element = Element::kBf16;
  int64_t seq = 0, batch = 1, hidden = 0, first = 0;
  double probability = 0.0;
  int64_t stream = 0;
  const int32_t* samples = nullptr;
  const float* record = nullptr;  // the step record
  const int32_t* at = nullptr;
};
Status dropout(const Dropout& args, const void* x, void* y, const Launch& launch);
// y = residual + dropout(x + bias[hidden]); without bias, and with probability 0, what is there.
Status bias_dropout_add(const Dropout& args, const void* residual, const void* x, const void* bias, void* y,
                        const Launch& launch);
Status multiply(Element element, const void* x, float factor, void* y, int64_t count, const Launch& launch);

// Of a pack (past: [count], one behind the last token of each one's sequence) none comes from another sequence.
Status shift_tokens(const int32_t* tokens, int32_t* moved, int64_t count, int64_t by, const int32_t* past,
                    const Launch& launch);

// Rotates in place; table [seq, turned/2, 2]: cosine and sine, both times the attributes' factor. own [seq]: where a
// position's own sequence begins, from which it counts; null: at 0.
Status rope_any(Element element, const RopeAttrs& attrs, int64_t seq, int64_t batch, void* qkv, const float* table,
                const int32_t* own, const Launch& launch);

}  // namespace mbb::trainer::cuda
