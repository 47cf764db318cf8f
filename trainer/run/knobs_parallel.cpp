// Knobs of [parallel]: how the model is spread over GPUs (ranks).
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> parallel_knobs() {
  return {
      {.key = "parallel.gpus",
       .aliases = {"world_size"},
       .field = field(&Config::parallel, &ParallelConfig::gpus),
       .range = within(0, 1 << 20),
       .unit = "GPUs",
       .doc = "Ranks of the run: tensor x context x pipeline x data parallel; 0 = one data-parallel replica, or "
              "the processes that mpirun started."},
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
      {.key = "parallel.context_parallel_size",
       .aliases = {"cp"},
       .field = field(&Config::parallel, &ParallelConfig::context_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "GPUs",
       .doc =
           "GPUs that share each sequence: rank i of c holds chunks i and 2c-1-i of 2c, which balances causal work."},
      {.key = "parallel.cp_comm_type",
       .field = field(&Config::parallel, &ParallelConfig::cp_comm_type),
       .doc =
           "How attention sees the other ranks' keys and values: p2p (they travel in a ring, under attention), "
           "all_gather (they come first; causal attention reads them in the ring's steps, that of packs and both ways "
           "all at once), a2a (a rank gets the whole sequence for a part of the heads) or a2a+p2p (a2a among "
           "neighbours, p2p between them); one type, or one a layer, separated by commas.",
       .needs = {needs::kCp}},
      {.key = "parallel.hierarchical_context_parallel_sizes",
       .field = field(&Config::parallel, &ParallelConfig::hierarchical_context_parallel_sizes),
       .range = within(1, 1 << 16),
       .doc = "Of cp_comm_type a2a+p2p: the ranks of its a2a and of its p2p groups, as in 2,4; their product is "
              "context_parallel_size."},
      {.key = "parallel.cp_ring_use_ce",
       .field = field(&Config::parallel, &ParallelConfig::cp_ring_use_ce),
       .doc = "Keys and values of a ring (cp_comm_type p2p) travel by copy engines, which leave all SMs to attention, "
              "where the ring's GPUs share a host.",
       .needs = {needs::kCp}},
      {.key = "parallel.use_distributed_optimizer",
       .aliases = {"distributed_optimizer"},
       .field = field(&Config::parallel, &ParallelConfig::use_distributed_optimizer),
       .doc = "Shards master weights and moments over the data-parallel GPUs: reduce-scatter of gradients, all-gather "
              "of parameters.",
       .history = "Megatron-Core: off.",
       .needs = {needs::kDataParallel, needs::kWholeGradients}},
  };
}

}  // namespace mbb::trainer
