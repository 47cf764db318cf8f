// Mappings that tests train on devices, each held against one rank of the oracle.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string_view>

#include "trainer/models/small_families.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/train.h"

namespace mbb::trainer::cuda {

inline Config llama() {
  Config c;
  sizes(c, "llama3-8b", 2);
  c.model.num_layers = 4;
  c.model.hidden_size = 64;
  c.model.ffn_hidden_size = 128;
  c.model.kv_channels = 16;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.train.train_iters = 3;
  c.optimizer.lr_warmup_iters = 1;
  return c;
}

// Wide enough for eight ranks, in FP8 too.
inline Config wide_llama() {
  Config c = llama();
  c.model.num_attention_heads = c.model.num_query_groups = 8;
  c.train.train_iters = 2;
  c.train.seq_length = 64;
  c.train.micro_batch_size = 1;
  return c;
}

inline Config family(std::string_view name) {
  if (name == "wide") return wide_llama();
  Config c = config_of(family_of(name));
  c.train.global_batch_size = 8;
  if (c.model.num_experts > 0) c.model.num_experts = 8;
  return c;
}

inline void tp(Config& c, int64_t size) {
  c.parallel.tensor_model_parallel_size = size;
}
inline void pp(Config& c, int64_t size, int64_t chunks) {
  c.parallel.pipeline_model_parallel_size = size;
  c.parallel.virtual_pipeline_model_parallel_size = chunks;
}
inline void cp(Config& c, int64_t size, const char* comm) {
  c.parallel.context_parallel_size = size;
  c.parallel.cp_comm_type = comm;
  if (std::string_view(comm) == "a2a+p2p") c.parallel.hierarchical_context_parallel_sizes = {2, size / 2};
}
inline void tp_cp(Config& c, int64_t tensor, int64_t context, const char* comm) {
  tp(c, tensor);
  cp(c, context, comm);
}
inline void ep(Config& c, MoeExchange exchange) {
  c.parallel.gpus = c.parallel.expert_model_parallel_size = 2;
  c.parallel.moe_exchange = exchange;
  if (exchange == MoeExchange::kCounts) c.host.enable_cuda_graph = false;  // read on the host
  c.parallel.use_distributed_optimizer = false;
}
inline void dp(Config& c, int64_t size) {
  c.parallel.gpus = size * c.parallel.tensor_model_parallel_size * c.parallel.context_parallel_size *
                    c.parallel.pipeline_model_parallel_size;
}

enum class Recipes { kAll, kFp8 };  // kFp8: those alone

struct Mapping {
  const char* name;
  const char* family;  // null: llama(), whose shapes FP8 takes as they are
  void (*map)(Config&);
  Recipes recipes = Recipes::kAll;

  bool takes(Recipe recipe) const { return recipes == Recipes::kAll || is_quantized(recipe); }
};

// Tensor-parallel collectives overlap by these methods, and nowhere else.
inline void tp2_overlapped(Config& c, KnobMap methods) {
  tp(c, 2);
  c.tp_overlap.tp_comm_overlap = true;
  for (const char* site : {"qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad", "fc1_fprop", "fc1_dgrad",
                           "fc1_wgrad", "fc2_fprop", "fc2_dgrad"})
    methods.try_emplace(std::string(site) + ".method", "none");
  c.tp_overlap.tp_comm_overlap_cfg = std::move(methods);
}

// A method on all sites whose product can be split.
inline KnobMap everywhere(const char* method) {
  KnobMap methods;
  for (const char* site :
       {"qkv_fprop", "qkv_dgrad", "proj_fprop", "proj_dgrad", "fc1_fprop", "fc1_dgrad", "fc2_fprop", "fc2_dgrad"})
    methods[std::string(site) + ".method"] = method;
  return methods;
}

inline void PrintTo(const Mapping& mapping, std::ostream* out) {
  *out << mapping.name;
}

inline const Mapping kMappings[] = {
    {"tp2", nullptr,
     [](Config& c) {
       tp(c, 2);
       c.parallel.sequence_parallel = false;
     }},
    {"tp2_sp", nullptr, [](Config& c) { tp(c, 2); }},
    {"tp2_sp_overlap", nullptr,
     [](Config& c) {
       tp(c, 2);
       c.tp_overlap.tp_comm_overlap = true;
     }},
    {"tp2_bulk", nullptr,
     [](Config& c) {
       tp2_overlapped(c, {{"qkv_dgrad.method", "bulk"},
                          {"qkv_wgrad.method", "bulk"},
                          {"fc1_dgrad.method", "bulk"},
                          {"fc1_wgrad.method", "bulk"}});
     }},
    {"tp2_pipeline", nullptr,
     [](Config& c) {
       tp2_overlapped(c, {{"proj_fprop.method", "pipeline"},
                          {"proj_fprop.num_sm", "8"},
                          {"proj_fprop.num_splits", "2"},
                          {"fc2_fprop.method", "pipeline"},
                          {"fc2_fprop.num_sm", "16"},
                          {"fc2_fprop.num_splits", "4"},
                          {"fc2_fprop.set_sm_margin", "true"}});
     }},
    {"tp2_pipeline_everywhere", nullptr, [](Config& c) { tp2_overlapped(c, everywhere("pipeline")); }},
    {"tp2_ring_exchange", nullptr, [](Config& c) { tp2_overlapped(c, everywhere("ring_exchange")); }},
    {"tp2_pipeline_delayed", nullptr,
     [](Config& c) {
       tp2_overlapped(c, everywhere("pipeline"));
       c.precision.recipe = Recipe::kFp8Delayed;
     },
     Recipes::kFp8},
    {"tp2_ring_exchange_delayed", nullptr,
     [](Config& c) {
       tp2_overlapped(c, everywhere("ring_exchange"));
       c.precision.recipe = Recipe::kFp8Delayed;
     },
     Recipes::kFp8},
    {"tp2_sp_registered", nullptr,
     [](Config& c) {
       tp(c, 2);
       c.memory.nccl_ub = true;
     }},
    {"cp2_p2p", nullptr, [](Config& c) { cp(c, 2, "p2p"); }},
    {"cp2_all_gather", nullptr, [](Config& c) { cp(c, 2, "all_gather"); }},
    {"cp2_a2a", nullptr, [](Config& c) { cp(c, 2, "a2a"); }},
    {"cp2_copy_engines", nullptr,
     [](Config& c) {
       cp(c, 2, "p2p");
       c.parallel.cp_ring_use_ce = true;
     }},
    {"cp4_p2p", "wide", [](Config& c) { cp(c, 4, "p2p"); }},
    {"cp4_all_gather", "wide", [](Config& c) { cp(c, 4, "all_gather"); }},
    {"cp4_a2a", "wide", [](Config& c) { cp(c, 4, "a2a"); }},
    {"cp4_a2a_p2p", "wide", [](Config& c) { cp(c, 4, "a2a+p2p"); }},
    {"tp4", "wide", [](Config& c) { tp(c, 4); }},
    {"tp4_overlap", "wide",
     [](Config& c) {
       tp(c, 4);
       c.tp_overlap.tp_comm_overlap = true;
     }},
    {"tp8", "wide", [](Config& c) { tp(c, 8); }},
    {"tp4_cp2_p2p", "wide", [](Config& c) { tp_cp(c, 4, 2, "p2p"); }},
    {"tp4_cp2_all_gather", "wide", [](Config& c) { tp_cp(c, 4, 2, "all_gather"); }},
    {"tp4_cp2_a2a", "wide", [](Config& c) { tp_cp(c, 4, 2, "a2a"); }},
    {"tp2_cp4_a2a_p2p", "wide", [](Config& c) { tp_cp(c, 2, 4, "a2a+p2p"); }},
    {"pp4_vpp2", "wide", [](Config& c) { pp(c, 4, 2); }},
    {"pp8", "wide", [](Config& c) { pp(c, 8, 1); }},
    {"pp8_vpp2", "wide", [](Config& c) { pp(c, 8, 2); }},
    {"fsdp8", "wide",
     [](Config& c) {
       dp(c, 8);
       c.data_parallel.use_torch_fsdp2 = true;
     }},
    {"hsdp2x4", "wide",
     [](Config& c) {
       dp(c, 8);
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.num_distributed_optimizer_instances = 2;
     }},
    {"dp8_two_instances", "wide",
     [](Config& c) {
       dp(c, 8);
       c.data_parallel.num_distributed_optimizer_instances = 2;
     }},
    {"pp2", nullptr, [](Config& c) { pp(c, 2, 1); }},
    {"pp2_vpp2", nullptr, [](Config& c) { pp(c, 2, 2); }},
    {"dp2", nullptr, [](Config& c) { dp(c, 2); }},
    {"dp2_overlap", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
       c.data_parallel.bucket_size = 20000;
     }},
    {"dp2_unsharded", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.parallel.use_distributed_optimizer = false;
     }},
    {"fsdp2", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = true;
     }},
    {"fsdp2_registered", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = true;
       c.memory.nccl_ub = true;
     }},
    {"fsdp2_copy_engines", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = true;
       c.memory.nccl_ub = true;
       c.memory.nccl_cta_policy = CtaPolicy::kZero;
     }},
    {"dp2_overlap_copy_engines", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
       c.memory.nccl_ub = true;
       c.data_parallel.bucket_size = 20000;
       c.memory.nccl_cta_policy = CtaPolicy::kZero;
     }},
    {"fsdp2_fp8_parameters", nullptr,
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = c.precision.fp8_param = true;
     },
     Recipes::kFp8},
    {"tp2_pp2_dp2", nullptr,
     [](Config& c) {
       tp(c, 2);
       pp(c, 2, 1);
       dp(c, 2);
     }},
    {"ep2_padded", "mixtral", [](Config& c) { ep(c, MoeExchange::kPadded); }},
    {"ep2_counts", "mixtral", [](Config& c) { ep(c, MoeExchange::kCounts); }},
    {"ep2_under_compute", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kPadded);
       c.overlap.overlap_moe_expert_parallel_comm = c.overlap.delay_wgrad_compute = true;
     }},
    {"ep2_etp2", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kPadded);
       c.parallel.gpus = 4;
       c.parallel.expert_tensor_parallel_size = 2;
     }},
    {"ep8_etp1_tp2_dp4", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kPadded);
       tp(c, 2);
       c.parallel.gpus = c.parallel.expert_model_parallel_size = 8;
       c.parallel.expert_tensor_parallel_size = 1;
       c.parallel.use_distributed_optimizer = true;
     }},
    {"ep4_counts", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kCounts);
       c.parallel.gpus = c.parallel.expert_model_parallel_size = 4;
       c.parallel.use_distributed_optimizer = true;
     }},
    {"ep2_delayed", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kPadded);
       c.precision.recipe = Recipe::kFp8Delayed;
     },
     Recipes::kFp8},
    {"ep2_blockwise_fp8_dispatch", "mixtral",
     [](Config& c) {
       ep(c, MoeExchange::kPadded);
       c.precision.recipe = Recipe::kFp8Blockwise;
       c.parallel.moe_fp8_dispatch = true;
     },
     Recipes::kFp8},
    {"ep2_biases", "gpt_oss", [](Config& c) { ep(c, MoeExchange::kPadded); }},
    {"ep2_capacity", "mixtral_capacity", [](Config& c) { ep(c, MoeExchange::kPadded); }},
    {"tp2_balanced", "mixtral_balanced", [](Config& c) { tp(c, 2); }},
    {"cp2_sinks_and_windows", "gpt_oss", [](Config& c) { cp(c, 2, "p2p"); }},
    {"cp2_a2a_sinks", "gpt_oss", [](Config& c) { cp(c, 2, "a2a"); }},
    {"cp2_dropout", "gpt_dropout", [](Config& c) { cp(c, 2, "p2p"); }},
    {"cp2_positions", "gpt", [](Config& c) { cp(c, 2, "all_gather"); }},
    {"cp2_latent_mtp", "deepseek_v3_mtp", [](Config& c) { cp(c, 2, "p2p"); }},
    {"encoder_stage", "t5", [](Config& c) { c.parallel.encoder_pipeline_model_parallel_size = 1; }},
    {"tp2_encoder_stage", "t5",
     [](Config& c) {
       tp(c, 2);
       c.parallel.encoder_pipeline_model_parallel_size = c.parallel.encoder_tensor_model_parallel_size = 1;
     }},
    {"tp2_encoder_stage_tp2", "t5",
     [](Config& c) {
       tp(c, 2);
       c.parallel.encoder_pipeline_model_parallel_size = 1;
       c.parallel.encoder_tensor_model_parallel_size = 2;
     }},
};

// One rank's, of sizes that the recipe takes.
inline Config base_of(const Mapping& mapping, Recipe recipe = Recipe::kFp32) {
  Config c = mapping.family == nullptr ? llama() : family(mapping.family);
  const bool wide = mapping.family != nullptr && std::string_view(mapping.family) == "wide";
  if (mapping.family != nullptr && !wide && is_quantized(recipe)) in_sixteens(c);
  const std::string_view name = mapping.name;
  if (name == "pp4_vpp2" || name == "pp8") c.model.num_layers = 8;
  if (name == "pp8_vpp2") c.model.num_layers = 16;
  return c;
}

inline Config mapped(const Mapping& mapping, Recipe recipe) {
  Config c = base_of(mapping, recipe);
  c.precision.recipe = recipe;
  mapping.map(c);
  return c;
}

}  // namespace mbb::trainer::cuda
