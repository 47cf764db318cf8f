// Overlap of data-parallel communication and of the optimizer with compute: passes over a step that ends with gradient
// sync and optimizer on the compute stream.
//
// They move ops to other segments, streams and micro-batches and change no value, except that a delayed optimizer
// leaves the last step's update pending.
#pragma once

#include "trainer/optim/optimizer.h"

namespace mbb::trainer {

// A bucket's reductions run on stream dp as soon as the last micro-batch's backward has written its last gradient. A
// bucket whose gradients are written in several segments, or that something else in gradient sync reads, stays. Squares
// of what was reduced before the last backward ends run under the reductions it ends with.
void overlap_grad_reduce(Program& program, const std::vector<Bucket>& buckets);

// The backward of the first layers ends with the embedding's gradient, whose reduction is the largest and which nothing
// is left to hide: weight gradients of the layer before it go behind it. Runs before buckets are made, which are
// reduced in the order in which they are complete.
void put_wgrads_behind_embedding(Program& program, int backward);

struct ParamGather {
  bool align = false;                 // at the same point of the schedule on all stages
  bool first_with_optimizer = false;  // the first-used bucket's under the optimizer step
};
// A bucket's all-gather runs on stream dp in the first micro-batch's forward, one bucket ahead of its first use.
// Aligned, it is a segment of its own a chunk, which schedule_aligned_gathers() calls.
void overlap_param_gather(Builder& builder, DataParallel& data_parallel, const ParamGather& how);

// Calls of the chunks' gather segments: the first two chunks' before everything, a later chunk's when the chunk before
// it begins on the first stage: stage s, which starts s forwards later, calls them s forwards earlier in its own count.
void schedule_aligned_gathers(Program& program, const std::vector<int>& gathers, int stage);

// AdamW of a bucket runs on stream dp in the next step's first forward, one bucket ahead of its use, by that time's
// copy of the step record and the gradient scale.
void overlap_optimizer_with_forward(Builder& builder, DataParallel& data_parallel);

// Weight gradients of the LM head move from the backward of `chunk` into a segment "chunkN.deferred_wgrad", which is
// returned (-1 where there is none to move) and which the schedule calls after the last backward.
int defer_head_wgrad(Builder& builder, int chunk);

}  // namespace mbb::trainer
