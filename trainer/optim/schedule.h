// Learning rate by step: linear warm-up, then decay, as Megatron's scheduler counts.
//
// With s steps done before this one (the first step has s = 0) and W warm-up steps out of D:
//   s < W          init_lr + (lr − init_lr) · s / W
//   s > D          min_lr
//   otherwise, with r = (s − W) / (D − W):
//     constant     lr
//     linear       min_lr + (lr − min_lr) · (1 − r)
//     cosine       min_lr + (lr − min_lr) · (1 + cos πr) / 2
// Megatron steps its scheduler after the optimizer, so with warm-up the first step has the rate init_lr, which is 0 by
// default, and the last of D steps is one short of min_lr.
#pragma once

#include <cstdint>

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

struct LearningRateSchedule {
  double lr = 3e-4;
  double min_lr = 0.0;
  double init_lr = 0.0;  // where warm-up starts
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // D, counted from step 0; above warmup_steps unless constant
  LrDecay style = LrDecay::kCosine;
};

Status validate(const LearningRateSchedule& schedule);

// `steps_done` >= 0; the schedule is valid.
double learning_rate(const LearningRateSchedule& schedule, std::int64_t steps_done);

// Rate of step `step` (from 0) of a run of `steps`, which decays over all of them.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step);

}  // namespace mbb::trainer
