// Knobs of [parallel] that say where experts lie and how tokens reach them.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

namespace {

// Whose choices count instead of the router's.
std::vector<Knob> routing_knobs() {
  return {
      {.key = "parallel.moe_router_force_load_balancing",
       .field = field(&Config::parallel, &ParallelConfig::moe_router_force_load_balancing),
       .doc = "Sends tokens to experts in turn, whatever the router says: balanced load for timings, no training.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_router_replay",
       .field = field(&Config::parallel, &ParallelConfig::moe_router_replay),
       .doc = "Experts that routers chose in another run, so that runs that round differently are compared token by "
              "token: a file with every token's choice at every step, that a bundle of a run with 'record' keeps as "
              "routing.bin (all of it in memory: for small models). 'reference', in a suite: the choices of the "
              "one-GPU fp32 cell of the same work, which records them; other fp32 cells choose by themselves. Empty = "
              "routers choose.",
       .history = "Megatron-Core's router replay keeps choices in memory, for reinforcement learning.",
       .needs = {needs::kExperts}},
  };
}

}  // namespace

std::vector<Knob> expert_knobs() {
  std::vector<Knob> all{
      {.key = "parallel.expert_model_parallel_size",
       .aliases = {"ep"},
       .field = field(&Config::parallel, &ParallelConfig::expert_model_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "GPUs",
       .doc =
           "GPUs that share the experts of a layer, taken from tensor x context x data parallel; divides the experts."},
      {.key = "parallel.expert_tensor_parallel_size",
       .aliases = {"etp"},
       .field = field(&Config::parallel, &ParallelConfig::expert_tensor_parallel_size),
       .range = within(0, 1 << 16),
       .unit = "GPUs",
       .doc = "GPUs that share each expert's weights; divides the experts' width. 0 = as tensor_model_parallel_size."},
      {.key = "parallel.moe_dropless_bound",
       .field = field(&Config::parallel, &ParallelConfig::moe_dropless_bound),
       .range = at_least(0),
       .doc = "Rows an expert-parallel GPU can take where no token is dropped, or tensor-parallel GPUs drop together, "
              "over the balanced load: the size of buffers and of padded messages. More rows end the run with the "
              "bound it needs. 0 = the worst case.",
       .needs = {needs::kExperts, needs::kEp, needs::kDropless}},
      {.key = "parallel.moe_exchange",
       .field = field(&Config::parallel, &ParallelConfig::moe_exchange),
       .choices = {choice("padded", MoeExchange::kPadded, "slots of fixed size, filled with zeros"),
                   choice("counts", MoeExchange::kCounts, "counts first, then the rows that are there")},
       .doc = "What expert-parallel GPUs send each other.",
       .needs = {needs::kExperts, needs::kExchange}},
      {.key = "parallel.moe_fp8_dispatch",
       .field = field(&Config::parallel, &ParallelConfig::moe_fp8_dispatch),
       .doc =
           "Tokens travel to experts of other GPUs in E4M3, with a scale for every 128 elements; what comes back and "
           "all gradients keep their type.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_grouped_gemm",
       .field = field(&Config::parallel, &ParallelConfig::moe_grouped_gemm),
       .doc = "Matrix products of all experts of a GPU in one op; off = one after the other.",
       .history = "Megatron-Core: off.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_permute_fusion",
       .field = field(&Config::parallel, &ParallelConfig::moe_permute_fusion),
       .doc = "Rows that come back from experts are weighted and summed as they are read; off = first put into the "
              "tokens' order, then summed.",
       .history = "Megatron-Core: off.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_router_fusion",
       .field = field(&Config::parallel, &ParallelConfig::moe_router_fusion),
       .doc = "The choice of experts and their weights in one op.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_expert_capacity_factor",
       .field = field(&Config::parallel, &ParallelConfig::moe_expert_capacity_factor),
       .range = at_least(0),
       .doc = "Tokens of a micro-batch an expert takes at most, over the balanced load; what is more is dropped, the "
              "same whatever ranks hold the tokens; padding takes no place. 0 = none is dropped.",
       .history = "Megatron-Core counts each sequence-parallel GPU's tokens by themselves.",
       .needs = {needs::kExperts}},
      {.key = "parallel.moe_token_drop_policy",
       .field = field(&Config::parallel, &ParallelConfig::moe_token_drop_policy),
       .choices = {choice("probs", TokenDrop::kProbs, "the tokens of smallest weight"),
                   choice("position", TokenDrop::kPosition, "the last tokens of the micro-batch")},
       .doc = "Which tokens an expert over its capacity drops.",
       .needs = {needs::kExperts, needs::kCapacity}},
  };
  const std::vector<Knob> routing = routing_knobs();
  all.insert(all.end(), routing.begin(), routing.end());
  return all;
}

}  // namespace mbb::trainer
