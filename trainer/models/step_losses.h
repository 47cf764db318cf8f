// The losses beside the main one that a step reports: of routers, and of multi-token prediction.
#pragma once

#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// Emits into the current segment, gradient sync after its sums over replicas: the sums over tensor-parallel ranks,
// which hold parts of the routers' losses, and over stages, which have other layers.
void sum_step_losses(Builder& builder, const Layout& layout);

}  // namespace mbb::trainer
