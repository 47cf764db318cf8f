// Flat optimizer buckets and the two segments that close a step: gradient sync and optimizer.
//
// A bucket is one flat weight buffer and one flat fp32 main-gradient buffer of equal layout; every weight and main
// gradient becomes a view into them. Buckets are padded to the sharding degree, so that a shard may cut a tensor at any
// element.
#pragma once

#include <vector>

#include "trainer/ops/attrs.h"
#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

struct Bucket {
  TensorId weights = kNoTensor;     // flat, compute dtype
  TensorId main_grads = kNoTensor;  // flat, f32
  int64_t elements = 0;             // with padding
  int64_t partial_elements = 0;     // leading elements whose gradients are partial sums over TP
  std::vector<BucketRange> ranges;
};

// Turns all weights into views of flat buckets: one of those on the device, one of those in host memory.
std::vector<Bucket> bucket_weights(Builder& builder, const Layout& layout);

// Sums gradients over TP where they are partial, over DP (reduce-scatter where the optimizer is sharded), and loss sums
// over stages and DP.
void build_grad_sync(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

// Global gradient norm, clip factor, AdamW on this rank's shard, all-gather of the new weights.
void build_optimizer(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

}  // namespace mbb::trainer
