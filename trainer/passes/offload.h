// The offload pass: activations of a chunk's first layers wait for the backward in host memory.
//
// Each value that such a layer's forward makes and the backward reads is copied to a host tensor ("….offload") as soon
// as it is there, on the copy stream, and copied back ("….reload") one layer ahead of its first reader, so that copies
// run beside the layer after it. On the device it lives through its forward readers and from the reload on. Copies are
// exact: results are equal bit for bit.
//
// With cpu_offloading_weights these layers' weights live in host memory too (the optimizer updates them there) and are
// loaded for the forward (".load") and for the backward (".reload"), a layer ahead.
//
// Runs after recompute: what is not kept is not copied. Before buckets, schedule and scopes.
#pragma once

#include "trainer/program/program.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

void offload(Program& program, int forward, int backward, const MemoryConfig& memory);

}  // namespace mbb::trainer
