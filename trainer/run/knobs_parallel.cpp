// Knobs of [parallel]: how the model is spread over GPUs (ranks).
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> parallel_knobs() {
  return {
      {.key = "parallel.gpus",
       .aliases = {"world_size"},
       .field = field(&Config::parallel, &ParallelConfig::gpus),
       .range = within(0, 1 << 20),
       .unit = "GPUs",
       .doc = "Ranks of the run: tensor x pipeline x data parallel; 0 = one data-parallel replica."},
      {.key = "parallel.tensor_model_parallel_size",
       .aliases = {"tp"},
       .field = field(&Config::parallel, &ParallelConfig::tensor_model_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "GPUs",
       .doc = "GPUs that share each layer's weights; divides the heads and the MLP width."},
      {.key = "parallel.sequence_parallel",
       .aliases = {"sp"},
       .field = field(&Config::parallel, &ParallelConfig::sequence_parallel),
       .doc = "Shards norms and residuals along the sequence over the tensor-parallel GPUs; auto = on when there are "
              "several.",
       .history = "Megatron-Core: off."},
      {.key = "parallel.nvlink_domain_size",
       .field = field(&Config::parallel, &ParallelConfig::nvlink_domain_size),
       .range = within(0, 1 << 20),
       .unit = "GPUs",
       .doc =
           "GPUs in use of one NVLink domain (8, 72, or 64 of 72): the groups that communicate most, tensor x context "
           "and expert parallel, must not straddle two domains. 0 = not checked."},
      {.key = "parallel.use_distributed_optimizer",
       .aliases = {"distributed_optimizer"},
       .field = field(&Config::parallel, &ParallelConfig::use_distributed_optimizer),
       .doc = "Shards master weights and moments over the data-parallel GPUs: reduce-scatter of gradients, all-gather "
              "of parameters.",
       .history = "Megatron-Core: off."},
      {.key = "parallel.moe_expert_capacity_factor",
       .field = field(&Config::parallel, &ParallelConfig::moe_expert_capacity_factor),
       .range = at_least(0),
       .doc = "Tokens an expert takes at most, over the balanced load; what is more is dropped. 0 = none is dropped."},
      {.key = "parallel.moe_token_drop_policy",
       .field = field(&Config::parallel, &ParallelConfig::moe_token_drop_policy),
       .choices = {choice("probs", TokenDrop::kProbs, "the tokens of smallest weight"),
                   choice("position", TokenDrop::kPosition, "the last tokens of the micro-batch")},
       .doc = "Which tokens an expert over its capacity drops."},
      {.key = "parallel.moe_router_force_load_balancing",
       .field = field(&Config::parallel, &ParallelConfig::moe_router_force_load_balancing),
       .doc = "Sends tokens to experts in turn, whatever the router says: balanced load for timings, no training."},
  };
}

}  // namespace mbb::trainer
