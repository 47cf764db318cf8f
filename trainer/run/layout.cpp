// The rules a configuration must keep, each named with its knob.
#include "trainer/run/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "trainer/models/hf_config.h"
#include "trainer/run/layout_memory.h"
#include "trainer/run/layout_rules.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/profile_window.h"

namespace mbb::trainer {
namespace {

Status divides(int64_t divisor, const char* divisor_knob, int64_t value, const char* what) {
  if (value % divisor == 0) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} = {} does not divide {} = {}", divisor_knob, divisor, what, value),
              fmt::format("choose a value of {} that divides {}", divisor_knob, value));
}

Status at_least(int64_t value, int64_t least, const char* knob) {
  if (value >= least) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} = {} must be at least {}", knob, value, least));
}

constexpr const char* kTp = "parallel.tensor_model_parallel_size";
constexpr const char* kPp = "parallel.pipeline_model_parallel_size";

Status unavailable(const ModelShape& m, const std::string& what, const std::string& hint) {
  return fail(ErrorCode::kUnavailable, fmt::format("model {}: {}", m.name, what), hint);
}

// What no stage can be cut around: weights that two stages would share.
Status check_stages(const Layout& l) {
  if (l.pp == 1) return {};
  const ModelShape& m = l.model;
  const auto refuse = [&](const char* part) {
    return unavailable(m, fmt::format("{} = {} with {}", kPp, l.pp, part),
                       "that part holds weights of the first and the last stage: use one stage");
  };
  if (m.tied_embeddings) return refuse("tied embeddings");
  if (m.num_mtp_layers > 0) return refuse("multi-token prediction");
  if (m.is_encoder_decoder()) return refuse("an encoder and a decoder");
  return {};
}

std::vector<ShapeOverride> overrides_of(const ModelConfig& o) {
  std::vector<ShapeOverride> all;
  const auto add = [&](const char* key, int64_t value, int64_t keeps) {
    if (value != keeps) all.emplace_back(key, value);
  };
  add("num_layers", o.num_layers, 0);
  add("hidden_size", o.hidden_size, 0);
  add("ffn_hidden_size", o.ffn_hidden_size, 0);
  add("num_attention_heads", o.num_attention_heads, 0);
  add("num_query_groups", o.num_query_groups, 0);
  add("kv_channels", o.kv_channels, 0);
  add("vocab_size", o.vocab_size, 0);
  add("max_position_embeddings", o.max_position_embeddings, 0);
  add("window_size", o.window_size, 0);
  add("num_experts", o.num_experts, 0);
  add("moe_router_topk", o.moe_router_topk, 0);
  add("moe_ffn_hidden_size", o.moe_ffn_hidden_size, 0);
  add("moe_shared_expert_intermediate_size", o.moe_shared_expert_intermediate_size, 0);
  add("moe_router_num_groups", o.moe_router_num_groups, 0);
  add("moe_router_group_topk", o.moe_router_group_topk, 0);
  add("moe_first_dense_layers", o.moe_first_dense_layers, -1);
  add("q_lora_rank", o.q_lora_rank, -1);
  add("kv_lora_rank", o.kv_lora_rank, 0);
  add("qk_head_dim", o.qk_head_dim, 0);
  add("qk_pos_emb_head_dim", o.qk_pos_emb_head_dim, 0);
  add("v_head_dim", o.v_head_dim, 0);
  add("mtp_num_layers", o.mtp_num_layers, -1);
  add("encoder_num_layers", o.encoder_num_layers, 0);
  return all;
}

Result<ModelShape> shape_of(const ModelConfig& o) {
  MB_ASSIGN(ModelShape m, resolve_model(o.name));
  if (o.kv_channels % 2 != 0 && !m.is_mla() && m.position == PositionKind::kRope)
    return fail(ErrorCode::kBadArgument, fmt::format("model.kv_channels = {} must be even for RoPE", o.kv_channels));
  MB_ASSIGN(m, with_overrides(std::move(m), overrides_of(o)));
  if (o.moe_aux_loss_coeff >= 0) {
    if (m.moe.aux_loss == AuxLoss::kNone) m.moe.aux_loss = AuxLoss::kBatch;
    m.moe.aux_loss_coefficient = o.moe_aux_loss_coeff;
  }
  if (o.moe_z_loss_coeff >= 0) m.moe.z_loss_coefficient = o.moe_z_loss_coeff;
  return m;
}

Status check_lengths(const Layout& l) {
  const int64_t longest = l.config.train.seq_length;
  if (l.model.position != PositionKind::kLearned || longest <= l.model.max_positions) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("train.seq_length = {} is more than the {} positions of model {}", longest,
                          l.model.max_positions, l.model.name),
              "lower train.seq_length or raise model.max_position_embeddings");
}

Status check_tensor_parallel(const Layout& l) {
  MB_TRY(divides(l.tp, kTp, l.model.num_attention_heads, "model.num_attention_heads"));
  MB_TRY(divides(l.tp, kTp, l.model.num_query_groups, "model.num_query_groups"));
  MB_TRY(divides(l.tp, kTp, l.model.ffn_hidden_size, "model.ffn_hidden_size"));
  MB_TRY(divides(l.tp, kTp, l.model.moe.expert_ffn_hidden_size, "model.moe_ffn_hidden_size"));
  MB_TRY(divides(l.tp, kTp, l.model.moe.shared_ffn_hidden_size, "model.moe_shared_expert_intermediate_size"));
  MB_TRY(divides(l.tp, kTp, l.vocab, "model.vocab_size"));
  if (l.sequence_parallel) {
    MB_TRY(divides(l.tp, kTp, l.sequence, "train.seq_length (sequence parallel)"));
    MB_TRY(divides(l.tp, kTp, l.encoder_sequence, "train.encoder_seq_length (sequence parallel)"));
  }
  if (l.config.parallel.sequence_parallel.value_or(false) && l.tp == 1)
    return fail(ErrorCode::kBadArgument, fmt::format("parallel.sequence_parallel = true needs {} above 1", kTp));
  return {};
}

void split_stages(Layout& l) {
  const int64_t per_stage = l.model.num_layers / l.pp;
  for (int stage = 0; stage < l.pp; ++stage)
    l.stages.push_back({stage * per_stage, per_stage, stage == 0, stage == l.pp - 1});
}

}  // namespace

int64_t Layout::bucket_elements() const {
  const DataParallelConfig& d = config.data_parallel;
  if (d.bucket_size > 0) return d.bucket_size;
  // Buckets hide nothing without overlap, and off the first stage their messages are not on the critical path.
  if (!d.overlap_grad_reduce || pp > 1) return std::numeric_limits<int64_t>::max();
  return std::max(int64_t{40'000'000}, int64_t{1'000'000} * dp);
}

Result<Layout> resolve(const Config& config) {
  Layout l;
  l.config = config;
  MB_TRY(resolve_data_parallel(l.config));
  MB_ASSIGN(l.model, shape_of(config.model));
  const ParallelConfig& p = config.parallel;
  MB_TRY(at_least(p.tensor_model_parallel_size, 1, kTp));
  MB_TRY(at_least(p.pipeline_model_parallel_size, 1, kPp));
  MB_TRY(at_least(config.train.micro_batch_size, 1, "train.micro_batch_size"));
  MB_TRY(at_least(config.train.global_batch_size, 1, "train.global_batch_size"));
  MB_TRY(at_least(config.train.seq_length, 1, "train.seq_length"));
  MB_TRY(at_least(config.train.train_iters, 1, "train.train_iters"));
  const int64_t model_ranks = p.tensor_model_parallel_size * p.pipeline_model_parallel_size;
  const int64_t world = p.gpus == 0 ? model_ranks : p.gpus;
  if (world % model_ranks != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("parallel.gpus = {} is no multiple of tensor × pipeline = {} × {} = {}", world,
                            p.tensor_model_parallel_size, p.pipeline_model_parallel_size, model_ranks),
                fmt::format("data parallelism is what is left: gpus = {} × dp", model_ranks));
  l.tp = static_cast<int>(p.tensor_model_parallel_size);
  l.pp = static_cast<int>(p.pipeline_model_parallel_size);
  l.dp = static_cast<int>(world / model_ranks);
  l.sequence_parallel = p.sequence_parallel_on() && l.tp > 1;
  l.micro_batch = config.train.micro_batch_size;
  l.sequence = l.packed() ? config.packing.packed_sequence_size : config.train.seq_length;
  if (l.model.is_encoder_decoder())
    l.encoder_sequence = config.train.encoder_seq_length > 0 ? config.train.encoder_seq_length : l.sequence;
  l.global_batch = config.train.global_batch_size;
  l.vocab = l.model.vocab_size;
  l.compute = config.precision.recipe == Recipe::kFp32 ? DType::kF32 : DType::kBf16;
  MB_TRY(check_stages(l));
  MB_TRY(check_lengths(l));
  MB_TRY(check_tensor_parallel(l));
  MB_TRY(check_memory_rules(l));
  MB_TRY(check_precision(config, l.model));
  MB_TRY(divides(l.pp, kPp, l.model.num_layers, "model.num_layers"));
  const int64_t per_step = l.micro_batch * l.dp;
  if (l.global_batch % per_step != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("train.global_batch_size = {} is no multiple of micro_batch_size × dp = {} × {} = {}",
                            l.global_batch, l.micro_batch, l.dp, per_step));
  l.micro_batches = static_cast<int>(l.global_batch / per_step);
  ParallelSizes sizes;
  sizes.tp = l.tp;
  sizes.pp = l.pp;
  sizes.dp = l.dp;
  sizes.dp_instances = static_cast<int>(config.data_parallel.num_distributed_optimizer_instances);
  MB_ASSIGN(l.mesh, Mesh::make(sizes));
  MB_TRY(profile_window(config, l.mesh.world_size()));
  if (config.profiling.use_nsys_profiler && config.host.device != Device::kCuda)
    return fail(ErrorCode::kBadArgument, "profiling.use_nsys_profiler = true needs host.device = cuda",
                "leave it off: CPU runs are traced without nsys");
  split_stages(l);
  return l;
}

}  // namespace mbb::trainer
