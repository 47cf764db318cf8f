// Knobs of [memory]: what is kept for the backward and what is computed again.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

namespace {

std::vector<Knob> recompute_and_offload() {
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
  };
}

std::vector<Knob> frozen_and_adapters() {
  return {
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
           "Linear layers that get an adapter, commas between: qkv, proj, fc1, fc2, of experts one each; with latent "
           "attention q_down, q_up, kv_down, kv_up; of cross attention q, kv."},
  };
}

std::vector<Knob> limits_and_environment() {
  return {
      {.key = "memory.limit_gib",
       .field = field(&Config::memory, &MemoryConfig::limit_gib),
       .range = within(0, 1 << 20),
       .unit = "GiB",
       .doc = "Memory a rank may take; a plan above it is refused before anything runs. 0 = what the device has free."},
      {.key = "memory.expandable_segments",
       .field = field(&Config::memory, &MemoryConfig::expandable_segments),
       .doc = "The arena is one range in which buffers of all categories take turns; off: a slab for each category, as "
              "an allocator's pools, whose slack shows in the plan.",
       .history = "PyTorch: off."},
      {.key = "memory.avoid_record_streams",
       .field = field(&Config::memory, &MemoryConfig::avoid_record_streams),
       .doc = "A communication buffer is free again after its last reader; off: at the end of its call, as where an "
              "allocator waits for the other stream.",
       .history = "PyTorch: off."},
      {.key = "memory.nccl_nvls_enable",
       .field = field(&Config::memory, &MemoryConfig::nccl_nvls_enable),
       .doc =
           "NCCL_NVLS_ENABLE of a launch's process. Multicast over NVLink reserves memory and can take the GPUs of a "
           "shared host out of service.",
       .history = "NCCL: on where it can be.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "memory.nccl_net_gdr_level",
       .field = field(&Config::memory, &MemoryConfig::nccl_net_gdr_level),
       .choices = {choice("as_found", GdrLevel::kAsFound, "the variable stays as it is"),
                   choice("loc", GdrLevel::kLoc, "never"), choice("pix", GdrLevel::kPix, "behind one PCIe switch"),
                   choice("pxb", GdrLevel::kPxb, "behind several PCIe switches"),
                   choice("phb", GdrLevel::kPhb, "behind one CPU"), choice("sys", GdrLevel::kSys, "anywhere")},
       .doc = "NCCL_NET_GDR_LEVEL of a launch's process: how far apart a GPU and a NIC may be that exchange directly.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "memory.nccl_net_gdr_c2c",
       .field = field(&Config::memory, &MemoryConfig::nccl_net_gdr_c2c),
       .doc =
           "NCCL_NET_GDR_C2C of a launch's process: direct exchange through the CPU's own link to the GPU; auto = as "
           "found.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "memory.nccl_ub",
       .field = field(&Config::memory, &MemoryConfig::nccl_ub),
       .doc =
           "Registers the arena with every communicator, as symmetric windows where the ranks' plans are alike: NCCL "
           "works on the step's own buffers in place of copies through its own. Also NCCL_LOCAL_REGISTER and "
           "NCCL_GRAPH_REGISTER of a launch's process; auto = those as found.",
       .needs = {needs::kGpu}},
      {.key = "memory.nccl_cta_policy",
       .field = field(&Config::memory, &MemoryConfig::nccl_cta_policy),
       .choices =
           {choice("as_found", CtaPolicy::kAsFound, "the variable stays as it is"),
            choice("fast", CtaPolicy::kFast, "as many thread blocks as the fastest collective takes"),
            choice("efficient", CtaPolicy::kEfficient, "few, where the bandwidth allows"),
            choice(
                "zero", CtaPolicy::kZero,
                "none where copy engines can do it: all-gathers of memory that memory.nccl_ub registered, and, among "
                "GPUs of one host, data-parallel reduce-scatters but for their sums")},
       .doc = "NCCL_CTA_POLICY of a launch's process: SMs that collectives take from compute.",
       .needs = {needs::kGpu}},
  };
}

}  // namespace

std::vector<Knob> memory_knobs() {
  std::vector<Knob> all = recompute_and_offload();
  for (auto&& part : {frozen_and_adapters(), limits_and_environment()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace mbb::trainer
