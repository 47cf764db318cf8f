// Knobs of [data_parallel]: what is sharded over the ranks that replicate a parameter, and how it is reduced.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

namespace {

Knob flag(const char* name, bool DataParallelConfig::*member, std::string doc,
          std::string history = "Megatron-Core: off.") {
  return {.key = std::string("data_parallel.") + name,
          .field = field(&Config::data_parallel, member),
          .doc = std::move(doc),
          .history = std::move(history)};
}

Knob needing(std::vector<std::string> needs, Knob knob) {
  knob.needs = std::move(needs);
  return knob;
}

// What collectives of data-parallel GPUs do.
Knob of_several(Knob knob) {
  return needing({needs::kDataParallel}, std::move(knob));
}

Knob strategy() {
  using D = DataParallelConfig;
  return {.key = "data_parallel.data_parallel_sharding_strategy",
          .aliases = {"sharding_strategy"},
          .field = field(&Config::data_parallel, &D::data_parallel_sharding_strategy),
          .choices =
              {choice("auto", ShardingStrategy::kAuto,
                      "optim_grads_params with use_torch_fsdp2, optim with use_distributed_optimizer, else no_shard"),
               choice("no_shard", ShardingStrategy::kNoShard, "nothing: every rank keeps all of its parameters' state"),
               choice("optim", ShardingStrategy::kOptim, "master weights and moments"),
               choice("optim_grads", ShardingStrategy::kOptimGrads,
                      "main gradients too, reduce-scattered layer by layer in every micro-batch"),
               choice("optim_grads_params", ShardingStrategy::kOptimGradsParams,
                      "parameters that train too, gathered layer by layer (FSDP)")},
          .doc = "What is sharded over the data-parallel GPUs. Frozen parameters stay whole on each.",
          .history = "Megatron-Core: no_shard.",
          .needs = {needs::kDataParallel}};
}

}  // namespace

std::vector<Knob> data_parallel_knobs() {
  using D = DataParallelConfig;
  return {
      strategy(),
      {.key = "data_parallel.use_torch_fsdp2",
       .aliases = {"fsdp"},
       .field = field(&Config::data_parallel, &D::use_torch_fsdp2),
       .doc = "Fully sharded data parallelism: the strategy optim_grads_params.",
       .needs = {needs::kDataParallel}},
      {.key = "data_parallel.num_distributed_optimizer_instances",
       .field = field(&Config::data_parallel, &D::num_distributed_optimizer_instances),
       .range = within(1, 1 << 16),
       .unit = "instances",
       .doc = "Shards inside a part of the data-parallel GPUs and replicates over the parts: reduce-scatter inside, "
              "all-reduce across, all-gather inside."},
      {.key = "data_parallel.bucket_size",
       .field = field(&Config::data_parallel, &D::bucket_size),
       .range = at_least(0),
       .unit = "elements",
       .doc = "A bucket of parameters is closed once it holds as many; 0 = with overlap_grad_reduce and one stage "
              "max(40M, 1M x data parallel), else one bucket a chunk."},
      {.key = "data_parallel.grad_reduce_in_fp32",
       .aliases = {"accumulate_allreduce_grads_in_fp32"},
       .field = field(&Config::data_parallel, &D::grad_reduce_in_fp32),
       .doc = "Accumulates and reduces main gradients in fp32; off: in the compute type.",
       .history = "Megatron-Core: on with bf16."},
      {.key = "data_parallel.reshard_after_forward",
       .field = field(&Config::data_parallel, &D::reshard_after_forward),
       .doc =
           "Of sharded parameters: gives a layer's gathered parameters back after its forward and gathers them again "
           "for the backward; off: keeps them, every layer in a slot of its own.",
       .needs = {needs::kDataParallel}},
      {.key = "data_parallel.fsdp_prefetch_units",
       .field = field(&Config::data_parallel, &D::fsdp_prefetch_units),
       .range = within(0, 1 << 10),
       .unit = "layers",
       .doc = "Of sharded parameters: layers gathered ahead of the one that computes; each takes a slot.",
       .needs = {needs::kDataParallel}},
      needing(
          {needs::kReduced},
          flag("overlap_grad_reduce", &D::overlap_grad_reduce,
               "Reduces a bucket's gradients under the last micro-batch's backward, as soon as they are "
               "complete; with several buckets or units the embedding's under the first layer's weight gradients.")),
      of_several(flag("overlap_param_gather", &D::overlap_param_gather,
                      "Gathers a bucket's parameters under the first micro-batch's forward, one bucket ahead; of "
                      "sharded parameters every gather runs beside compute.")),
      of_several(flag("align_param_gather", &D::align_param_gather,
                      "Gathers a chunk's parameters at the same point of the schedule on all pipeline stages.",
                      "Megatron-Core: on with interleaved stages.")),
      of_several(flag("overlap_param_gather_with_optimizer_step", &D::overlap_param_gather_with_optimizer_step,
                      "Gathers the bucket that is used first under the other buckets' optimizer step.")),
      flag("overlap_optimizer_with_forward", &D::overlap_optimizer_with_forward,
           "Updates a bucket under the next step's first forward, one bucket ahead of its use, and gathers it there "
           "(overlap_param_gather); the last step's update stays pending."),
      flag("defer_embedding_wgrad_compute", &D::defer_embedding_wgrad_compute,
           "Computes the LM head's weight gradients after the last stage's backwards, while the pipeline drains."),
  };
}

}  // namespace mbb::trainer
