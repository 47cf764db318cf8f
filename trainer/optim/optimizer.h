// The end of a step: gradients summed over the ranks that replicate a parameter, the global norm, AdamW, and the new
// weights where every rank needs them.
#pragma once

#include <vector>

#include "trainer/optim/buckets.h"
#include "trainer/passes/effects.h"

namespace mbb::trainer {

struct DataParallel {
  std::vector<Bucket> buckets;
  int grad_sync = -1;  // segments
  int optimizer = -1;
  std::vector<int> param_gathers;  // of aligned gathers, by chunk
  int deferred_wgrad = -1;         // of the LM head, where it is deferred
};

// Buckets all weights, appends the segments "grad_sync" and "optimizer", and applies the configuration's passes over
// them, noted in `passes`. Forward and backward segments are complete.
DataParallel build_data_parallel(Builder& builder, const Layout& layout, PassLog& passes);
// Adds the calls of those segments to a schedule that holds the micro-batches' calls.
void schedule_data_parallel(Program& program, const DataParallel& data_parallel);

// Whether the op belongs to the update of a bucket's weights: AdamW, and the ops that write FP8 weights after it.
bool updates(const Op& op, const Bucket& bucket);

// Sums gradients over the tensor group where they are partial, over the replicas (reduce-scatter where states are
// sharded, then an all-reduce over instances), and loss sums over stages and replicas.
void build_grad_sync(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

// Global gradient norm, clip factor, AdamW on this rank's shards, all-gather of new weights that are kept whole.
void build_optimizer(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

}  // namespace mbb::trainer
