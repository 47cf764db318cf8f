// The learning rate's closed forms.
#include "trainer/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mbb::trainer {

Status validate(const LearningRateSchedule& schedule) {
  auto refuse = [](std::string what) -> Status { return fail(ErrorCode::kBadArgument, std::move(what)); };
  if (!(schedule.lr >= 0) || !std::isfinite(schedule.lr))
    return refuse(fmt::format("lr is {}, not a finite number of 0 or more", schedule.lr));
  if (!(schedule.min_lr >= 0 && schedule.min_lr <= schedule.lr))
    return refuse(fmt::format("min_lr is {}, not within 0..lr ({})", schedule.min_lr, schedule.lr));
  if (!(schedule.init_lr >= 0 && schedule.init_lr <= schedule.lr))
    return refuse(fmt::format("lr_warmup_init is {}, not within 0..lr ({})", schedule.init_lr, schedule.lr));
  if (schedule.warmup_steps < 0) return refuse(fmt::format("lr_warmup_iters is {}, negative", schedule.warmup_steps));
  if (schedule.style != LrDecay::kConstant && schedule.decay_steps <= schedule.warmup_steps)
    return refuse(fmt::format("lr_decay_iters is {}, not above lr_warmup_iters ({})", schedule.decay_steps,
                              schedule.warmup_steps));
  return {};
}

double learning_rate(const LearningRateSchedule& schedule, std::int64_t steps_done) {
  const auto s = static_cast<double>(steps_done);
  const auto warmup = static_cast<double>(schedule.warmup_steps);
  if (steps_done < schedule.warmup_steps) return schedule.init_lr + (schedule.lr - schedule.init_lr) * s / warmup;
  if (schedule.style == LrDecay::kConstant) return schedule.lr;
  if (steps_done > schedule.decay_steps) return schedule.min_lr;
  const double ratio = (s - warmup) / (static_cast<double>(schedule.decay_steps) - warmup);
  const double weight =
      schedule.style == LrDecay::kLinear ? 1.0 - ratio : 0.5 * (1.0 + std::cos(std::numbers::pi * ratio));
  return schedule.min_lr + (schedule.lr - schedule.min_lr) * weight;
}

double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step) {
  // A run shorter than its warm-up never decays; one of exactly that length has no step left to.
  const std::int64_t decay_steps = std::max(steps, optimizer.lr_warmup_iters + 1);
  return learning_rate(LearningRateSchedule{.lr = optimizer.lr,
                                            .min_lr = optimizer.min_lr,
                                            .init_lr = 0.0,
                                            .warmup_steps = optimizer.lr_warmup_iters,
                                            .decay_steps = decay_steps,
                                            .style = optimizer.lr_decay_style},
                       step);
}

}  // namespace mbb::trainer
