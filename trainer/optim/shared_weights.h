// Gradients of weights that several pipeline stages, or the encoder and the decoder, hold.
#pragma once

#include "trainer/optim/buckets.h"
#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// Emits into the current segment what makes the main gradients of shared weights equal on all their holders: an
// all-reduce over the stages; the encoder's part is added before, and it gets the sum back. Comes before the reduction
// over data-parallel ranks; where gradients are sharded already, the shards are summed, which are cut alike.
void sync_shared_weights(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

}  // namespace mbb::trainer
