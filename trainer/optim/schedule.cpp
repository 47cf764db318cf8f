// Warm-up and decay of the learning rate.
#include "trainer/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mbb::trainer {

double learning_rate(const OptimizerConfig& o, int64_t steps, int64_t step) {
  if (step < o.lr_warmup_iters) return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.lr_warmup_iters);
  const auto span = static_cast<double>(std::max<int64_t>(1, steps - 1 - o.lr_warmup_iters));
  const double done = std::min(1.0, static_cast<double>(step - o.lr_warmup_iters) / span);
  switch (o.lr_decay_style) {
    case LrDecay::kConstant: return o.lr;
    case LrDecay::kLinear: return o.lr + (o.min_lr - o.lr) * done;
    case LrDecay::kCosine: return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  }
  return o.lr;
}

}  // namespace mbb::trainer
