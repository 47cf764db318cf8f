// A position bias by buckets (T5's) around a fused kernel that adds a whole bias to its scores. bf16; sums in a fixed
// order.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// buckets [queries + keys - 1] on the device: of key - query, from 1 - queries on, each in [0, bucket_count).
struct PositionBias {
  int64_t heads = 1, queries = 0, keys = 0;
  int bucket_count = 0;
  bool causal = false;  // what a later key adds is no part of the gradient
  const int32_t* buckets = nullptr;
};

// Elements of a row of a bias: its keys, and what fills the last 16 bytes.
int64_t position_bias_row(int64_t keys);
// Of a bias [heads, queries, row] and as many of its gradient.
int64_t position_bias_bytes(int64_t heads, int64_t queries, int64_t keys);

// bias [heads, queries, row] of table [heads, bucket_count].
Status spread_position_bias(const PositionBias& b, const void* table, void* bias, const Launch& launch);

// dtable [heads, bucket_count] fp32 (+)= the sums by bucket of dbias [heads, queries, row]. `workspace`:
// position_bias_workspace(b) bytes.
int64_t position_bias_workspace(const PositionBias& b);
Status gather_position_bias(const PositionBias& b, const void* dbias, float* dtable, bool accumulate, void* workspace,
                            const Launch& launch);

}  // namespace mbb::trainer::cuda
