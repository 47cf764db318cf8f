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
      {.key = "parallel.pipeline_model_parallel_size",
       .aliases = {"pp"},
       .field = field(&Config::parallel, &ParallelConfig::pipeline_model_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "stages",
       .doc = "Stages the layers are cut into, run as 1F1B."},
      {.key = "parallel.use_distributed_optimizer",
       .aliases = {"distributed_optimizer"},
       .field = field(&Config::parallel, &ParallelConfig::use_distributed_optimizer),
       .doc = "Shards master weights and moments over the data-parallel GPUs: reduce-scatter of gradients, all-gather "
              "of parameters.",
       .history = "Megatron-Core: off."},
  };
}

}  // namespace mbb::trainer
