// Attention sinks around a fused kernel that knows none: one more logit a head, of a key without a value, takes the
// share exp(sink - lse) of every row. bf16; sums in a fixed order.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// out and dout [rows, batch, heads * value_dim], lse [batch, heads, lse_rows] from the first of `rows` on, sinks
// [heads]; value_dim in eights.
struct SinkShape {
  int64_t rows = 0, batch = 1, heads = 1, value_dim = 64, lse_rows = 0;
};

// In place: out of a softmax without sinks becomes that of one with them, and so does its lse.
Status apply_sinks(const SinkShape& shape, const void* sinks, void* out, float* lse, const Launch& launch);

// dsinks [heads] (+)= the sinks' gradient, of out and lse with sinks. The fused backward needs nothing else: with this
// lse its probabilities are right. `workspace`: sink_gradient_workspace(shape) bytes.
int64_t sink_gradient_workspace(const SinkShape& shape);
Status sink_gradient(const SinkShape& shape, const void* sinks, const void* out, const void* dout, const float* lse,
                     float* dsinks, bool accumulate, void* workspace, const Launch& launch);

}  // namespace mbb::trainer::cuda
