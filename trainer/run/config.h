// The trainer's configuration: plain structs, one a section, with every default. Each field is a knob (knobs.h) and is
// read somewhere; sizes are per the name, in tokens, sequences, layers or GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/knob.h"
#include "trainer/data/packing.h"
#include "trainer/data/token_source.h"
#include "trainer/ops/attrs.h"

namespace mbb::trainer {

enum class TokenDrop { kProbs, kPosition };
enum class MoeExchange { kPadded, kCounts };
enum class LrDecay { kCosine, kLinear, kConstant };
// Which of optimizer states, gradients and parameters are sharded over the data-parallel ranks.
enum class ShardingStrategy { kAuto, kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class Recipe { kFp32, kBf16, kFp8Delayed, kFp8Current, kFp8Blockwise, kMxfp8, kNvfp4 };
enum class StateType { kFp32, kBf16, kFp16, kFp8 };
enum class AmaxAlgorithm { kMax, kMostRecent };
enum class Device { kCpu, kCuda };
enum class GraphImpl { kNone, kLocal };
enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };
enum class GdrLevel { kAsFound, kLoc, kPix, kPxb, kPhb, kSys };  // how far apart GPU and NIC may be, in NCCL's words
enum class CtaPolicy { kAsFound, kFast, kEfficient, kZero };     // thread blocks that NCCL takes

// A shape field of 0 means: as the model named `name` has it.
struct ModelConfig {
  std::string name = "quickstart-llama";
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;  // head dimension
  int64_t vocab_size = 0;
  int64_t make_vocab_size_divisible_by = 128;  // times tensor_model_parallel_size
  int64_t max_position_embeddings = 0;
  int64_t window_size = 0;
  int64_t num_experts = 0;
  int64_t moe_router_topk = 0;
  int64_t moe_ffn_hidden_size = 0;
  int64_t moe_shared_expert_intermediate_size = 0;
  int64_t moe_router_num_groups = 0;
  int64_t moe_router_group_topk = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_head_dim = 0;
  int64_t qk_pos_emb_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t encoder_num_layers = 0;
  // Fields whose 0 means something: −1 is as the model has it.
  int64_t moe_first_dense_layers = -1;
  int64_t q_lora_rank = -1;
  int64_t mtp_num_layers = -1;
  double moe_aux_loss_coeff = -1;
  double moe_z_loss_coeff = -1;
};

struct DataConfig {
  DataKind kind = DataKind::kAuto;
  std::string path;  // empty: the text shipped with the project
};

struct TrainConfig {
  int64_t micro_batch_size = 1;    // sequences
  int64_t global_batch_size = 8;   // sequences
  int64_t seq_length = 64;         // tokens
  int64_t encoder_seq_length = 0;  // tokens; 0 = seq_length
  int64_t train_iters = 60;        // steps
  int64_t seed = 1234;
  double hidden_dropout = 0.0;  // probabilities
  double attention_dropout = 0.0;
};

struct OptimizerConfig {
  double lr = 3e-3;
  double min_lr = 3e-4;
  int64_t lr_warmup_iters = 5;
  LrDecay lr_decay_style = LrDecay::kCosine;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  double clip_grad = 1.0;  // global norm; 0 = no clipping
  double init_method_std = 0.02;
  bool use_precision_aware_optimizer = false;
  StateType main_params_dtype = StateType::kFp32;
  StateType exp_avg_dtype = StateType::kFp32;
  StateType exp_avg_sq_dtype = StateType::kFp32;
};

struct PrecisionConfig {
  Recipe recipe = Recipe::kFp32;
  int64_t first_last_layers_bf16 = 0;   // layers at either end
  int64_t fp8_margin = 0;               // powers of two
  int64_t fp8_amax_history_len = 1024;  // steps
  AmaxAlgorithm fp8_amax_compute_algo = AmaxAlgorithm::kMax;
  bool fp8_power_of_two_scales = true;
  bool fp8_param = false;
};

struct ParallelConfig {
  int64_t gpus = 0;  // world size; 0 = tensor x context x pipeline, that is one data-parallel replica
  int64_t tensor_model_parallel_size = 1;
  std::optional<bool> sequence_parallel;  // nothing = auto: on when tensor_model_parallel_size > 1
  int64_t context_parallel_size = 1;
  std::string cp_comm_type = "p2p";                          // or one a layer, separated by commas
  std::vector<int64_t> hierarchical_context_parallel_sizes;  // inner and outer, of a2a+p2p
  bool cp_ring_use_ce = false;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;              // model chunks a stage
  int64_t microbatch_group_size_per_virtual_pipeline_stage = 0;  // micro-batches; 0 = pipeline_model_parallel_size
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string pipeline_layout;                       // empty: equal slots
  int64_t nvlink_domain_size = 0;                    // GPUs; 0 = not checked
  int64_t encoder_pipeline_model_parallel_size = 0;  // 1 = the encoder has GPUs of its own
  int64_t encoder_tensor_model_parallel_size = 0;    // 0 = tensor_model_parallel_size
  bool use_distributed_optimizer = true;
  int64_t expert_model_parallel_size = 1;
  int64_t expert_tensor_parallel_size = 0;  // 0 = tensor_model_parallel_size
  double moe_expert_capacity_factor = 0;    // rows of an expert over the balanced load; 0 = dropless
  TokenDrop moe_token_drop_policy = TokenDrop::kProbs;
  double moe_dropless_bound = 0;  // rows of a peer over the balanced load; 0 = the worst case
  MoeExchange moe_exchange = MoeExchange::kPadded;
  bool moe_fp8_dispatch = false;
  bool moe_grouped_gemm = true;
  bool moe_permute_fusion = true;
  bool moe_router_fusion = false;
  bool moe_router_force_load_balancing = false;
  std::string moe_router_replay;  // record, reference, or a file of choices; empty: routers choose

  bool sequence_parallel_on() const { return sequence_parallel.value_or(tensor_model_parallel_size > 1); }
};

struct MemoryConfig {
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;
  int64_t recompute_num_layers = 1;
  std::string recompute_modules = "core_attn";  // names with commas between, of passes/recompute.h
  bool cpu_offloading = false;
  int64_t cpu_offloading_num_layers = 0;  // of a chunk, from its first; 0 = all but the last
  bool cpu_offloading_weights = false;
  std::string frozen;  // patterns of weight paths with commas between
  int64_t lora_rank = 0;
  double lora_alpha = 32;
  std::string lora_targets = "qkv,proj";
  double limit_gib = 0;  // of a rank; 0 = what the device has
  bool expandable_segments = true;
  bool avoid_record_streams = true;
  bool nccl_nvls_enable = false;
  GdrLevel nccl_net_gdr_level = GdrLevel::kAsFound;
  std::optional<bool> nccl_net_gdr_c2c;  // nothing = auto: as found
  std::optional<bool> nccl_ub;           // nothing = auto: as found
  CtaPolicy nccl_cta_policy = CtaPolicy::kAsFound;
};

struct DataParallelConfig {
  // auto: optim_grads_params with use_torch_fsdp2, optim with parallel.use_distributed_optimizer, else no_shard
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kAuto;
  bool use_torch_fsdp2 = false;
  int64_t num_distributed_optimizer_instances = 1;
  int64_t bucket_size = 0;  // elements; 0 = auto
  bool grad_reduce_in_fp32 = true;
  bool reshard_after_forward = true;
  int64_t fsdp_prefetch_units = 1;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool align_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false;
  bool overlap_optimizer_with_forward = false;
  bool defer_embedding_wgrad_compute = false;
};

struct OverlapConfig {
  std::optional<bool> overlap_p2p_comm;  // nothing = auto: on when the pipeline is interleaved
  std::optional<bool> batch_p2p_comm;    // nothing = auto: on when neither overlapped nor interleaved
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;
  int64_t cuda_device_max_connections = 0;  // hardware queues; 0 = as found
};

struct FusionConfig {
  bool residual_fusion = false;
  bool cross_entropy_loss_fusion = false;
  bool swiglu_fusion = false;
  bool masked_softmax_fusion = true;
  bool gradient_accumulation_fusion = true;
  bool bias_activation_fusion = false;
  bool bias_dropout_fusion = false;
  bool apply_rope_fusion = true;
  AttentionBackend attention_backend = AttentionBackend::kAuto;
};

struct PackingConfig {
  SequenceLengths sequences = SequenceLengths::kStream;
  int64_t packed_sequence_size = 0;  // tokens of a pack; 0 = one sequence a row, padded to seq_length
  int64_t max_sequences = 64;        // of a pack
  int64_t mean_length = 0;           // of drawn lengths, tokens; 0 = a quarter of seq_length
  double length_sigma = 1.0;
  LongSequences too_long = LongSequences::kTruncate;
};

// Tensor-parallel collectives under matrix products, and SMs left to communication.
struct TpOverlapConfig {
  bool tp_comm_overlap = false;
  KnobMap tp_comm_overlap_cfg;  // {"proj_fprop.method", "pipeline"}
  int64_t fwd_layernorm_sm_margin = 0;
  int64_t bwd_layernorm_sm_margin = 0;
};

struct HostConfig {
  Device device = Device::kCpu;
  std::string cpu_binding = "none";
  int64_t vboost = -1;             // -1: as found
  int64_t manual_gc_interval = 1;  // steps; 0 = no rank waits for the others' host work
  bool enable_cuda_graph = true;
  GraphImpl cuda_graph_impl = GraphImpl::kLocal;
  std::string cuda_graph_scope = "full_iteration";  // names with commas between, of execute/graph_pieces.h
  bool deterministic_mode = false;
  int64_t side_sms = 0;
  bool share_device = false;
  std::string gemm_tuning_file;     // empty: GEMMs are timed when a run starts
  int64_t no_progress_limit_s = 0;  // 0 = by the steps seen (trainer/comm/patience.h)
};

// Steps [profile_step_start, profile_step_end) are traced and never timed; -1 = chosen (profile_window.h).
struct ProfilingConfig {
  int64_t profile_step_start = -1;
  int64_t profile_step_end = -1;
  std::vector<int64_t> profile_ranks;  // empty: all
  bool use_nsys_profiler = false;
  bool record_memory_history = false;
  bool reference_work = false;
  std::string memory_snapshot_path;  // empty: none
};

struct DebugConfig {
  bool record_gradients = false;
  bool nan_trace = true;
  std::string inject_fault;  // KIND@RANK; empty: none
  int64_t delay_us = 0;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  ParallelConfig parallel;
  MemoryConfig memory;
  DataParallelConfig data_parallel;
  OverlapConfig overlap;
  FusionConfig fusion;
  PackingConfig packing;
  TpOverlapConfig tp_overlap;
  HostConfig host;
  ProfilingConfig profiling;
  DebugConfig debug;
};

}  // namespace mbb::trainer
