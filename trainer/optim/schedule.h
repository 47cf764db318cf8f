// The learning rate of a step, as Megatron-LM computes it: linear warm-up, then decay to min_lr.
#pragma once

#include <cstdint>

#include "trainer/run/config.h"

namespace mbb::trainer {

// Rate of step `step` (from 0) of `steps`. Warm-up reaches lr at step lr_warmup_iters - 1; the decay reaches min_lr at
// the last step.
double learning_rate(const OptimizerConfig& optimizer, int64_t steps, int64_t step);

}  // namespace mbb::trainer
