// Knobs of [optimizer]: AdamW, the learning-rate schedule, clipping, initialisation.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

Knob number(std::string name, double OptimizerConfig::*member, KnobRange range, std::string doc,
            std::string history = {}) {
  return {.key = "optimizer." + name,
          .field = field(&Config::optimizer, member),
          .range = range,
          .doc = std::move(doc),
          .history = std::move(history)};
}

Knob moment(std::string name, StateType OptimizerConfig::*member, std::string doc) {
  return {.key = "optimizer." + name,
          .field = field(&Config::optimizer, member),
          .choices = {choice("fp32", StateType::kFp32), choice("bf16", StateType::kBf16, "rounded stochastically"),
                      choice("fp16", StateType::kFp16, "with a scale a tensor"),
                      choice("fp8", StateType::kFp8, "with a scale a tensor; E4M3, squares E5M2")},
          .doc = std::move(doc)};
}

}  // namespace

std::vector<Knob> optimizer_knobs() {
  return {
      number("lr", &OptimizerConfig::lr, above(0), "Peak learning rate.", "Megatron-Core has no default."),
      {.key = "optimizer.min_lr",
       .field = field(&Config::optimizer, &OptimizerConfig::min_lr),
       .range = at_least(0),
       .doc = "Learning rate at the end of the decay; at most optimizer.lr.",
       .history = "Megatron-Core: 0.",
       .needs = {needs::kDecay, needs::kStepsAfterWarmup}},
      {.key = "optimizer.lr_warmup_iters",
       .field = field(&Config::optimizer, &OptimizerConfig::lr_warmup_iters),
       .range = at_least(0),
       .unit = "steps",
       .doc = "Steps over which the learning rate rises linearly from 0.",
       .history = "Megatron-Core: 0."},
      {.key = "optimizer.lr_decay_style",
       .field = field(&Config::optimizer, &OptimizerConfig::lr_decay_style),
       .choices = {choice("cosine", LrDecay::kCosine, "half a cosine down to min_lr"),
                   choice("linear", LrDecay::kLinear, "a straight line down to min_lr"),
                   choice("constant", LrDecay::kConstant, "stays at lr")},
       .doc = "Form of the decay after the warm-up, which ends at train_iters.",
       .history = "Megatron-Core: linear.",
       .needs = {needs::kStepsAfterWarmup}},
      number("adam_beta1", &OptimizerConfig::adam_beta1, at_least_and_below(0, 1), "Decay of the first moment."),
      number("adam_beta2", &OptimizerConfig::adam_beta2, at_least_and_below(0, 1), "Decay of the second moment.",
             "Megatron-Core: 0.999; large models are trained with 0.95."),
      number("adam_eps", &OptimizerConfig::adam_eps, at_least(1e-38),
             "Added to the root of the second moment; below 1e-38 it would be 0 in fp32."),
      number("weight_decay", &OptimizerConfig::weight_decay, at_least(0),
             "Decoupled weight decay of matrices; norms and biases have none.", "Megatron-Core: 0.01."),
      number("clip_grad", &OptimizerConfig::clip_grad, at_least(0),
             "Largest global norm of the gradient; 0 = no clipping."),
      number("init_method_std", &OptimizerConfig::init_method_std, above(0), "Standard deviation of initial weights."),
      {.key = "optimizer.use_precision_aware_optimizer",
       .field = field(&Config::optimizer, &OptimizerConfig::use_precision_aware_optimizer),
       .doc =
           "Keeps master weights and moments in the types below, an fp32 master as the bf16 weight and 16 bits more. "
           "Needs bf16 weights."},
      {.key = "optimizer.main_params_dtype",
       .field = field(&Config::optimizer, &OptimizerConfig::main_params_dtype),
       .choices = {choice("fp32", StateType::kFp32, "exact"),
                   choice("fp16", StateType::kFp16, "a master of 16 bits with a scale a tensor"),
                   choice("bf16", StateType::kBf16, "no master: the bf16 weight alone, rounded stochastically")},
       .doc = "What the precision-aware optimizer updates; fp32 beside precision.fp8_param."},
      moment("exp_avg_dtype", &OptimizerConfig::exp_avg_dtype, "First moment of the precision-aware optimizer."),
      moment("exp_avg_sq_dtype", &OptimizerConfig::exp_avg_sq_dtype, "Second moment of the precision-aware optimizer."),
  };
}

}  // namespace mbb::trainer
