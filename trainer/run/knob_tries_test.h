// Where each knob does something: the value to try, and what goes with it.
#pragma once

#include <map>

#include "profiler/base/text.h"
#include "trainer/run/settings_test.h"

namespace mbb::trainer {

inline Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Settings kBase{"layers=2", "seq_length=16", "mbs=1", "gbs=4", "train_iters=3"};
// A small GPT with biases, dropout and learned positions.
inline const Settings kSmallGpt{"model=gpt-462b",        "hidden_size=32", "ffn_hidden_size=48",
                                "num_attention_heads=4", "vocab_size=256", "data.kind=synthetic"};
inline const Settings kSmallT5{"model=t5-220m", "hidden_size=32", "ffn_hidden_size=48",   "num_attention_heads=4",
                               "kv_channels=8", "vocab_size=256", "encoder_num_layers=1", "data.kind=synthetic"};

inline const Settings kSmallMoe{
    "model=mixtral-8x7b",     "hidden_size=32", "ffn_hidden_size=48", "num_attention_heads=4",
    "num_query_groups=2",     "vocab_size=64",  "num_experts=4",      "moe_router_topk=2",
    "moe_ffn_hidden_size=24", "etp=1",          "data.kind=synthetic"};

inline const Settings kAware{"recipe=bf16", "use_precision_aware_optimizer=true"};

// Where a knob needs company to mean something: the value to try, and what goes with it.
struct Try {
  std::string value;
  Settings with;
  bool refused = false;  // what is laid out without it is not with it: that is its effect
  int64_t slow_ms = 0;   // the first sample takes so long
};
inline const std::map<std::string, Try> kTries{
    {"train.encoder_seq_length", {"12", kSmallT5}},
    {"train.hidden_dropout", {"0.2", {}}},
    {"train.attention_dropout", {"0.2", {}}},
    {"train.global_batch_size", {"8", {}}},
    {"train.micro_batch_size", {"2", {}}},
    {"train.seq_length", {"32", {}}},
    {"optimizer.lr_decay_style", {"linear", {"train_iters=12"}}},
    {"optimizer.min_lr", {"0.001", {"train_iters=8"}}},
    {"optimizer.clip_grad", {"0.01", {}}},
    {"optimizer.use_precision_aware_optimizer", {"true", {"recipe=bf16"}}},
    {"optimizer.main_params_dtype", {"bf16", kAware}},
    {"optimizer.exp_avg_dtype", {"fp8", kAware}},
    {"optimizer.exp_avg_sq_dtype", {"bf16", kAware}},
    {"precision.recipe", {"fp8_current", {"recipe=bf16"}}},
    {"precision.first_last_layers_bf16", {"1", {"recipe=fp8_current", "layers=3"}}},
    {"precision.fp8_margin", {"1", {"recipe=fp8_delayed"}}},
    {"precision.fp8_amax_history_len", {"1", {"recipe=fp8_delayed"}}},
    {"precision.fp8_amax_compute_algo", {"most_recent", {"recipe=fp8_delayed"}}},
    {"precision.fp8_power_of_two_scales",
     {"false",
      {"recipe=fp8_blockwise", "hidden_size=128", "ffn_hidden_size=128", "num_query_groups=4", "kv_channels=32",
       "seq_length=128"}}},
    {"precision.fp8_param", {"true", {"recipe=fp8_current"}}},
    {"parallel.gpus", {"2", {}}},
    {"parallel.tensor_model_parallel_size", {"2", {}}},
    {"parallel.sequence_parallel", {"false", {"tp=2"}}},
    {"parallel.pipeline_model_parallel_size", {"2", {}}},
    {"parallel.virtual_pipeline_model_parallel_size", {"2", {"layers=4", "pp=2"}}},
    {"parallel.microbatch_group_size_per_virtual_pipeline_stage", {"4", {"layers=4", "pp=2", "vpp=2", "gbs=8"}}},
    {"parallel.account_for_embedding_in_pipeline_split", {"true", {"pp=2"}, true}},
    {"parallel.account_for_loss_in_pipeline_split", {"true", {"pp=2"}, true}},
    {"parallel.pipeline_layout", {"Ett|L", {"pp=2"}}},
    {"parallel.encoder_pipeline_model_parallel_size", {"1", kSmallT5}},
    {"parallel.encoder_tensor_model_parallel_size",
     {"1", kSmallT5 + Settings{"tp=2", "encoder_pipeline_model_parallel_size=1"}}},
    {"parallel.use_distributed_optimizer", {"false", {"gpus=2"}}},
    {"parallel.expert_model_parallel_size", {"2", kSmallMoe}},
    {"parallel.expert_tensor_parallel_size", {"2", kSmallMoe + Settings{"gpus=2"}}},
    {"parallel.moe_expert_capacity_factor", {"0.5", kSmallMoe}},
    {"parallel.moe_token_drop_policy", {"position", kSmallMoe + Settings{"moe_expert_capacity_factor=0.5"}}},
    {"parallel.moe_dropless_bound", {"1.9", kSmallMoe + Settings{"ep=2", "moe_router_force_load_balancing=true"}}},
    {"parallel.moe_exchange", {"counts", kSmallMoe + Settings{"ep=2"}}},
    {"parallel.moe_fp8_dispatch", {"true", kSmallMoe + Settings{"ep=2"}}},
    {"parallel.moe_grouped_gemm", {"false", kSmallMoe}},
    {"parallel.moe_permute_fusion", {"false", kSmallMoe}},
    {"parallel.moe_router_fusion", {"true", kSmallMoe}},
    {"parallel.moe_router_force_load_balancing", {"true", kSmallMoe}},
    {"parallel.moe_router_replay", {"record", kSmallMoe}},
    {"overlap.overlap_p2p_comm", {"true", {"pp=2"}}},
    {"overlap.batch_p2p_comm", {"false", {"pp=2"}}},
    {"overlap.overlap_moe_expert_parallel_comm", {"true", kSmallMoe + Settings{"ep=2"}}},
    {"overlap.delay_wgrad_compute", {"true", kSmallMoe + Settings{"ep=2"}}},
    {"parallel.context_parallel_size", {"2", {}}},
    {"parallel.cp_comm_type", {"all_gather", {"cp=2"}}},
    {"parallel.cp_ring_use_ce", {"true", {"cp=2"}}},
    {"parallel.nvlink_domain_size", {"2", {"tp=2", "cp=2"}, true}},
    {"parallel.hierarchical_context_parallel_sizes",
     {"4,1",
      {"cp=4", "cp_comm_type=a2a+p2p", "hierarchical_context_parallel_sizes=2,2", "num_attention_heads=4",
       "num_query_groups=4"}}},
    {"overlap.tp_comm_overlap", {"true", {"tp=2"}}},
    {"overlap.tp_comm_overlap_cfg", {"fc1_fprop.method=pipeline", {"tp=2", "tp_comm_overlap=true"}}},
    {"memory.recompute_granularity", {"full", {}}},
    {"memory.recompute_method", {"block", {"recompute_granularity=full"}}},
    {"memory.recompute_num_layers", {"2", {"recompute_granularity=full"}}},
    {"memory.recompute_modules", {"layernorm", {"recompute_granularity=selective"}}},
    {"memory.cpu_offloading", {"true", {}}},
    {"memory.cpu_offloading_num_layers", {"2", {"cpu_offloading=true"}}},
    {"memory.cpu_offloading_weights", {"true", {"cpu_offloading=true"}}},
    {"memory.frozen", {"embedding.*", {}}},
    {"memory.lora_rank", {"4", {}}},
    {"memory.lora_alpha", {"8", {"lora_rank=4"}}},
    {"memory.lora_targets", {"fc1", {"lora_rank=4"}}},
    {"memory.limit_gib", {"0.00001", {}}},
    {"memory.avoid_record_streams", {"false", {"tp=2"}}},
    {"fusion.swiglu_fusion", {"true", {}}},
    {"fusion.masked_softmax_fusion", {"false", {"attention_backend=unfused"}}},
    {"fusion.bias_activation_fusion", {"true", kSmallGpt}},
    {"fusion.bias_dropout_fusion", {"true", kSmallGpt}},
    {"fusion.attention_backend", {"unfused", {}}},
    {"data_parallel.data_parallel_sharding_strategy", {"optim_grads", {"gpus=2"}}},
    {"data_parallel.use_torch_fsdp2", {"true", {"gpus=2"}}},
    {"data_parallel.num_distributed_optimizer_instances", {"2", {"gpus=4"}}},
    {"data_parallel.bucket_size", {"3000", {"gpus=2"}}},
    {"data_parallel.grad_reduce_in_fp32", {"false", {"gpus=2", "recipe=bf16"}}},
    {"data_parallel.reshard_after_forward", {"false", {"gpus=2", "use_torch_fsdp2=true"}}},
    {"data_parallel.fsdp_prefetch_units", {"0", {"gpus=2", "use_torch_fsdp2=true"}}},
    {"data_parallel.overlap_grad_reduce", {"true", {"gpus=2"}}},
    {"data_parallel.overlap_param_gather", {"true", {"gpus=2"}}},
    {"data_parallel.align_param_gather", {"true", {"gpus=2", "overlap_param_gather=true"}}},
    {"data_parallel.overlap_param_gather_with_optimizer_step",
     {"true", {"gpus=2", "overlap_param_gather=true", "bucket_size=3000"}}},
    {"data_parallel.overlap_optimizer_with_forward", {"true", {"gpus=2", "overlap_param_gather=true"}}},
    {"data_parallel.defer_embedding_wgrad_compute", {"true", {"pp=2"}}},
    {"data.kind", {"synthetic", {}}},
    {"data.path", {MBB_SOURCE_DIR "/LICENSE", {}}},
    {"host.device", {"cuda", {}}},  // asked for; where there is none, refused by its name
    {"host.cpu_binding", {"0", {"gpus=2"}}},
    {"host.no_progress_limit_s", {"60", {"no_progress_limit_s=1"}, false, 1'500}},
    {"host.gemm_tuning_file", {"choices.txt", {}}},
    {"host.cuda_graph_scope", {"attn", {}}},
    {"host.share_device", {"true", {"host.device=cuda"}}},
    {"packing.sequences", {"lognormal", {}}},
    {"packing.packed_sequence_size", {"64", {"sequences=uniform"}}},
    {"packing.max_sequences", {"3", {"sequences=uniform", "packed_sequence_size=64"}}},
    {"packing.mean_length", {"12", {"sequences=uniform"}}},
    {"packing.length_sigma", {"0.1", {"sequences=lognormal"}}},
    {"packing.too_long", {"drop", {"sequences=lognormal", "length_sigma=2"}}},
};

inline std::string another(const Knob& knob, const Config& config) {
  const KnobData now = knob.get(&config);
  if (const auto* flag = std::get_if<bool>(&now)) return *flag ? "false" : "true";
  if (const auto* number = std::get_if<int64_t>(&now)) return std::to_string(*number + 1);
  if (const auto* number = std::get_if<double>(&now)) return format_exact(*number * 0.5 + 0.015625);
  if (std::holds_alternative<KnobAuto>(now)) return "true";
  for (const KnobChoice& choice : knob.choices)
    if (choice.name != knob_text(now)) return choice.name;
  return "";
}

}  // namespace mbb::trainer
