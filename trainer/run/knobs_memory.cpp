// Knobs of [memory]: what is kept for the backward and what is computed again.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> memory_knobs() {
  return {
      {.key = "memory.recompute_granularity",
       .field = field(&Config::memory, &MemoryConfig::recompute_granularity),
       .choices = {choice("none", RecomputeGranularity::kNone, "every activation the backward reads is kept"),
                   choice("selective", RecomputeGranularity::kSelective, "memory.recompute_modules of every layer"),
                   choice("full", RecomputeGranularity::kFull, "whole layers, by memory.recompute_method")},
       .doc = "Which activations the backward computes again instead of keeping."},
      {.key = "memory.recompute_method",
       .field = field(&Config::memory, &MemoryConfig::recompute_method),
       .choices = {choice("uniform", RecomputeMethod::kUniform,
                          "all layers, in groups of memory.recompute_num_layers that keep the input of the first"),
                   choice("block", RecomputeMethod::kBlock,
                          "the first memory.recompute_num_layers of a chunk, each by itself")},
       .doc = "Which layers full recompute takes.",
       .history = "Megatron-Core: none, to be given with full."},
      {.key = "memory.recompute_num_layers",
       .field = field(&Config::memory, &MemoryConfig::recompute_num_layers),
       .range = at_least(1),
       .unit = "layers",
       .doc = "Layers of a group (uniform) or of a chunk (block) that full recompute takes.",
       .history = "Megatron-Core: none, to be given with full."},
      {.key = "memory.recompute_modules",
       .field = field(&Config::memory, &MemoryConfig::recompute_modules),
       .doc = "What selective recompute takes, commas between: core_attn, layernorm, act, mlp, moe, moe_act, "
              "shared_experts, mla_up_proj."},
      {.key = "memory.cpu_offloading",
       .field = field(&Config::memory, &MemoryConfig::cpu_offloading),
       .doc = "Copies activations that the backward reads to pinned host memory, and back a layer ahead of their use."},
      {.key = "memory.cpu_offloading_num_layers",
       .field = field(&Config::memory, &MemoryConfig::cpu_offloading_num_layers),
       .range = at_least(0),
       .unit = "layers",
       .doc =
           "Layers of a chunk that are offloaded, from its first; 0 = all but the last, whose backward comes at once."},
      {.key = "memory.cpu_offloading_weights",
       .field = field(&Config::memory, &MemoryConfig::cpu_offloading_weights),
       .doc = "Weights of offloaded layers live in host memory and are loaded for each use, a layer ahead."},
      {.key = "memory.frozen",
       .field = field(&Config::memory, &MemoryConfig::frozen),
       .doc = "Weights that do not train, as patterns of their paths (* and ?) with commas between: no gradient, no "
              "optimizer state, no backward where nothing before them trains."},
      {.key = "memory.lora_rank",
       .field = field(&Config::memory, &MemoryConfig::lora_rank),
       .range = at_least(0),
       .doc = "Trains low-rank adapters of this rank beside memory.lora_targets and nothing else; 0 = off."},
      {.key = "memory.lora_alpha",
       .field = field(&Config::memory, &MemoryConfig::lora_alpha),
       .range = above(0),
       .doc = "What an adapter gives is multiplied by lora_alpha / lora_rank."},
      {.key = "memory.lora_targets",
       .field = field(&Config::memory, &MemoryConfig::lora_targets),
       .doc =
           "Linear layers of attention and dense MLPs that get an adapter, commas between: qkv, proj, fc1, fc2; with "
           "latent attention q_down, q_up, kv_down, kv_up; of cross attention q, kv."},
      {.key = "memory.limit_gib",
       .field = field(&Config::memory, &MemoryConfig::limit_gib),
       .range = at_least(0),
       .unit = "GiB",
       .doc = "Memory a rank may take; a plan above it is refused before anything runs. 0 = what the device has free."},
  };
}

}  // namespace mbb::trainer
