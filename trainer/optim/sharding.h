// Buckets whose gradients, or parameters too, exist whole for a while only (ZeRO-2, FSDP).
//
// A unit (the buckets of one layer, one a type of weights) is gathered into a slot before its first use in a segment
// and its gradients are reduce-scattered out of a slot after the last one is written, in every micro-batch. Slots are a
// ring that units take in turn: parameters k = prefetch + 1 of them, or one a unit where they stay gathered for the
// backward; gradients two. A unit whose uses enclose another's (tied embeddings, a shared bias table) has a slot of its
// own and is gathered once a forward.
#pragma once

#include <vector>

#include "trainer/optim/buckets.h"

namespace mbb::trainer {

// Declares the slots, makes weights and main gradients views of them, and puts the collectives into the forward and
// backward segments. Weight gradients then overwrite in every micro-batch; sums over micro-batches are kept in the
// shards, Bucket::main_grads. Gradients that are partial over tensor ranks (norms) are kept whole until the last
// micro-batch, where those ranks add them up and the scatter takes them along.
void shard_units(Builder& builder, const Layout& layout, const std::vector<Bucket>& buckets);

}  // namespace mbb::trainer
