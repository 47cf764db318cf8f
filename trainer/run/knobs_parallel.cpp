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
  };
}

}  // namespace mbb::trainer
