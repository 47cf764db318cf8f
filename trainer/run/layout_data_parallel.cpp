// The rules of data parallelism: what is sharded, and what may overlap.
#include <fmt/core.h>

#include "trainer/run/layout_rules.h"

namespace mbb::trainer {
namespace {

using Strategy = ShardingStrategy;

Status refuse(std::string what, std::string remedy) {
  return fail(ErrorCode::kBadArgument, std::move(what), std::move(remedy));
}

Status settle_strategy(Config& config) {
  DataParallelConfig& d = config.data_parallel;
  Strategy& strategy = d.data_parallel_sharding_strategy;
  const bool distributed = config.parallel.use_distributed_optimizer;
  if (d.use_torch_fsdp2 && strategy != Strategy::kAuto && strategy != Strategy::kOptimGradsParams)
    return refuse(
        "data_parallel.use_torch_fsdp2 = true shards parameters, and data_parallel_sharding_strategy says "
        "otherwise",
        "leave the strategy at auto, or set it to optim_grads_params");
  if (strategy == Strategy::kOptim && !distributed)
    return refuse(
        "data_parallel.data_parallel_sharding_strategy = optim contradicts "
        "parallel.use_distributed_optimizer = false",
        "drop one of the two");
  if (d.use_torch_fsdp2) d.overlap_param_gather = d.overlap_grad_reduce = true;
  if (strategy == Strategy::kAuto)
    strategy = d.use_torch_fsdp2 ? Strategy::kOptimGradsParams : distributed ? Strategy::kOptim : Strategy::kNoShard;
  // A gather follows the update it gathers.
  if (d.overlap_optimizer_with_forward && strategy != Strategy::kNoShard) d.overlap_param_gather = true;
  if (d.num_distributed_optimizer_instances > 1 && strategy == Strategy::kNoShard)
    return refuse(fmt::format("data_parallel.num_distributed_optimizer_instances = {} with nothing sharded",
                              d.num_distributed_optimizer_instances),
                  "set parallel.use_distributed_optimizer = true, or one instance");
  return {};
}

Status check_overlap(const DataParallelConfig& d) {
  const bool sharded_parameters = d.data_parallel_sharding_strategy == Strategy::kOptimGradsParams;
  if (d.overlap_param_gather && d.data_parallel_sharding_strategy == Strategy::kNoShard)
    return refuse("data_parallel.overlap_param_gather = true with nothing sharded: there is no gather",
                  "set parallel.use_distributed_optimizer = true");
  for (const auto& [on, knob] :
       {std::pair{d.align_param_gather, "align_param_gather"},
        std::pair{d.overlap_param_gather_with_optimizer_step, "overlap_param_gather_with_optimizer_step"}}) {
    if (!on) continue;
    if (sharded_parameters)
      return refuse(fmt::format("data_parallel.{} = true with sharded parameters, which are gathered layer by layer in "
                                "every micro-batch",
                                knob),
                    "drop one of the two");
    if (!d.overlap_param_gather)
      return refuse(fmt::format("data_parallel.{} = true needs data_parallel.overlap_param_gather = true", knob),
                    "set overlap_param_gather");
  }
  if (!d.overlap_optimizer_with_forward) return {};
  if (d.align_param_gather || d.overlap_param_gather_with_optimizer_step)
    return refuse(
        "data_parallel.overlap_optimizer_with_forward = true delays the optimizer past align_param_gather's "
        "and overlap_param_gather_with_optimizer_step's gathers",
        "drop one of them");
  return {};
}

Status check_slots(const DataParallelConfig& d) {
  if (d.data_parallel_sharding_strategy == Strategy::kOptimGradsParams) return {};
  const DataParallelConfig normal;
  if (d.reshard_after_forward != normal.reshard_after_forward)
    return refuse("data_parallel.reshard_after_forward = false with parameters that are not sharded",
                  "set data_parallel_sharding_strategy = optim_grads_params");
  if (d.fsdp_prefetch_units != normal.fsdp_prefetch_units)
    return refuse(fmt::format("data_parallel.fsdp_prefetch_units = {} with parameters that are not sharded",
                              d.fsdp_prefetch_units),
                  "set data_parallel_sharding_strategy = optim_grads_params");
  return {};
}

}  // namespace

Status resolve_data_parallel(Config& config) {
  MB_TRY(settle_strategy(config));
  const DataParallelConfig& d = config.data_parallel;
  MB_TRY(check_overlap(d));
  MB_TRY(check_slots(d));
  if (config.overlap.overlap_moe_expert_parallel_comm && d.reshard_after_forward &&
      d.data_parallel_sharding_strategy == Strategy::kOptimGradsParams)
    return refuse(
        "data_parallel.reshard_after_forward = true with overlap.overlap_moe_expert_parallel_comm: a forward and "
        "a backward that run at once would gather into each other's slots",
        "set data_parallel.reshard_after_forward = false: every layer then has a slot of its own");
  if (d.defer_embedding_wgrad_compute && config.parallel.pipeline_model_parallel_size == 1)
    return refuse("data_parallel.defer_embedding_wgrad_compute = true with one pipeline stage: nothing drains",
                  "set parallel.pipeline_model_parallel_size above 1");
  const bool sharded_grads = d.data_parallel_sharding_strategy == Strategy::kOptimGrads ||
                             d.data_parallel_sharding_strategy == Strategy::kOptimGradsParams;
  if (sharded_grads && d.bucket_size > 0)
    return refuse(
        fmt::format("data_parallel.bucket_size = {} with sharded gradients, whose unit is a layer", d.bucket_size),
        "leave bucket_size at 0, or shard optimizer states only");
  if (!d.grad_reduce_in_fp32 && config.precision.recipe == Recipe::kFp32)
    return refuse("data_parallel.grad_reduce_in_fp32 = false with precision.recipe = fp32, which has no bf16 gradients",
                  "choose precision.recipe = bf16");
  return {};
}

}  // namespace mbb::trainer
