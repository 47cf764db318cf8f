// The rules a configuration must keep, each named with its knob.
#include "trainer/run/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "trainer/execute/graph_pieces.h"
#include "trainer/models/hf_config.h"
#include "trainer/program/comm_limits.h"
#include "trainer/run/context_rules.h"
#include "trainer/run/inject_fault.h"
#include "trainer/run/knob_needs.h"
#include "trainer/run/layout_memory.h"
#include "trainer/run/layout_rules.h"
#include "trainer/run/pipeline_layout.h"
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
constexpr const char* kEp = "parallel.expert_model_parallel_size";
constexpr const char* kEtp = "parallel.expert_tensor_parallel_size";
constexpr const char* kPp = "parallel.pipeline_model_parallel_size";

constexpr const char* kEncoderPp = "parallel.encoder_pipeline_model_parallel_size";
constexpr const char* kEncoderTp = "parallel.encoder_tensor_model_parallel_size";

// Encoder-decoders: where the encoder lies and how its output reaches the decoder.
Status check_encoder(const Layout& l) {
  const ParallelConfig& p = l.config.parallel;
  const bool own_mesh = p.encoder_pipeline_model_parallel_size > 0;
  const int64_t tp = p.encoder_tensor_model_parallel_size;
  if (!own_mesh && tp > 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} = {} needs {} = 1", kEncoderTp, tp, kEncoderPp));
  if (own_mesh && !l.model.is_encoder_decoder())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = 1 with model {}, which has no encoder", kEncoderPp, l.model.name));
  if (!l.model.is_encoder_decoder()) return {};
  if (tp > 0) MB_TRY(divides(tp, kEncoderTp, l.tp, kTp));
  if (own_mesh && tp != 1 && l.tp > 1 && !l.sequence_parallel)
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("{} above 1 without sequence parallelism: its output crosses to the decoder in parts of the "
                    "sequence",
                    kEncoderTp),
        fmt::format("set parallel.sequence_parallel = true, or {} = 1", kEncoderTp));
  if (own_mesh)
    MB_TRY(
        divides(l.tp, kTp, l.local_encoder_sequence(), "train.encoder_seq_length / context parallel (across meshes)"));
  return {};
}

// After the stages are cut.
Status check_encoder_stages(const Layout& l) {
  if (!l.model.is_encoder_decoder()) return {};
  if (l.has_encoder_mesh() && l.shards_gradients())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = 1 with sharded gradients: both meshes' gradients of the embedding are summed whole",
                            kEncoderPp),
                "set data_parallel.data_parallel_sharding_strategy = optim or no_shard");
  if (l.vpp > 1)
    return fail(ErrorCode::kBadArgument,
                fmt::format("parallel.virtual_pipeline_model_parallel_size above 1 with model {}: the encoder's output "
                            "goes from stage to stage once",
                            l.model.name),
                "set parallel.virtual_pipeline_model_parallel_size = 1");
  for (const std::vector<Chunk>& stage : l.stages)
    if (stage.front().num_layers == 0)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("model {} has a stage without a decoder layer: all stages share the table of relative "
                              "positions and read the encoder's output",
                              l.model.name));
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
  auto named = resolve_model(o.name);
  if (!named && !is_model_path(o.name)) named.error().code = ErrorCode::kBadArgument;
  if (!named) return tl::unexpected<Error>(std::move(named.error()).during("model.name"));
  ModelShape m = *std::move(named);
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
  MB_TRY(divides(l.tp, kTp, l.model.moe.shared_ffn_hidden_size, "model.moe_shared_expert_intermediate_size"));
  if (l.sequence_parallel) {
    MB_TRY(divides(l.tp, kTp, l.local_sequence(), "train.seq_length / context parallel (sequence parallel)"));
    MB_TRY(divides(l.tp, kTp, l.local_encoder_sequence(),
                   "train.encoder_seq_length / context parallel (sequence parallel)"));
  }
  if (l.config.parallel.sequence_parallel.value_or(false) && l.tp == 1)
    return fail(ErrorCode::kBadArgument, fmt::format("parallel.sequence_parallel = true needs {} above 1", kTp));
  return {};
}

// Consecutive ranks share a domain; what communicates most stays inside.
Status check_placement(const Layout& l) {
  const int64_t domain = l.config.parallel.nvlink_domain_size;
  if (domain == 0 || l.mesh.world_size() <= domain) return {};
  for (const GroupKind kind : {GroupKind::kTp, GroupKind::kTpCp, GroupKind::kEtpEp})
    if (auto inside = l.mesh.check_inside_domain(kind, static_cast<int>(domain)); !inside)
      return tl::unexpected<Error>(
          std::move(inside.error()).during(fmt::format("parallel.nvlink_domain_size = {}", domain)));
  return {};
}

Status resolve_tp_overlap(Layout& l) {
  const TpOverlapConfig& o = l.config.tp_overlap;
  constexpr const char* kKnob = "overlap.tp_comm_overlap";
  if (!o.tp_comm_overlap) {
    if (o.tp_comm_overlap_cfg.empty()) return {};
    return fail(ErrorCode::kBadArgument, fmt::format("overlap.tp_comm_overlap_cfg without {} = true", kKnob),
                "set it, or leave the table empty");
  }
  if (!l.sequence_parallel)
    return fail(ErrorCode::kBadArgument, fmt::format("{} without sequence parallelism", kKnob),
                fmt::format("its collectives are those of parallel.sequence_parallel with {} above 1", kTp));
  const int64_t encoder_tp = l.has_encoder_mesh() ? l.mesh.tp(MeshRole::kEncoder) : l.tp;
  const RowsOfARank rows{l.local_sequence() / l.tp, l.local_encoder_sequence() / encoder_tp};
  const Recipe recipe = l.config.precision.recipe;
  const bool one_scale = recipe == Recipe::kFp8Current || recipe == Recipe::kFp8Delayed;
  const TpOverlapRecipe products{recipe_name(l.config), is_quantized(recipe), one_scale || !is_quantized(recipe)};
  MB_ASSIGN(l.tp_overlap, tp_overlap_sites(o.tp_comm_overlap_cfg, l.tp, rows, products));
  for (const TpOverlapSite& site : l.tp_overlap)
    if (site.method != TpOverlapMethod::kNone)
      MB_TRY(check_sms(fmt::format("overlap.tp_comm_overlap_cfg.{}.num_sm", site.name), site.num_sm,
                       l.config.host.side_sms, kMostSms));
  return {};
}

Status check_expert_parallel(const Layout& l) {
  const ParallelConfig& p = l.config.parallel;
  if (!l.model.is_moe()) {
    if (l.ep == 1 && p.expert_tensor_parallel_size == 0) return {};
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} and {} = {} with model {}, which has no experts", kEp, l.ep, kEtp,
                            p.expert_tensor_parallel_size, l.model.name),
                "leave them out, or choose a model with experts");
  }
  MB_TRY(divides(l.ep, kEp, l.model.moe.num_experts, "model.num_experts"));
  MB_TRY(divides(l.etp, kEtp, l.model.moe.expert_ffn_hidden_size, "model.moe_ffn_hidden_size"));
  if (l.exchanges_tokens() && l.tp > 1 && !l.sequence_parallel)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} and {} = {} with {} = {} need parallel.sequence_parallel", kEp, l.ep, kEtp, l.etp,
                            kTp, l.tp),
                "without it the tensor-parallel GPUs would send the same tokens");
  if (p.moe_dropless_bound > 0 && p.moe_dropless_bound < 1)
    return fail(ErrorCode::kBadArgument,
                fmt::format("parallel.moe_dropless_bound = {} is below the balanced load, 1", p.moe_dropless_bound),
                "give at least 1, or 0 for the worst case");
  if (p.moe_fp8_dispatch && l.ep == 1)
    return fail(ErrorCode::kBadArgument, fmt::format("parallel.moe_fp8_dispatch with {} = 1: no token travels", kEp),
                fmt::format("raise {}, or leave moe_fp8_dispatch off", kEp));
  if (!p.moe_grouped_gemm && is_quantized(l.config.precision.recipe))
    return fail(ErrorCode::kBadArgument,
                "parallel.moe_grouped_gemm = false with a precision.recipe that quantizes experts' products",
                "quantized products of experts are grouped: leave moe_grouped_gemm on");
  if (p.moe_exchange == MoeExchange::kCounts && p.moe_expert_capacity_factor > 0)
    return fail(ErrorCode::kBadArgument, "parallel.moe_exchange = counts with parallel.moe_expert_capacity_factor",
                "experts with a capacity own slots of fixed size: choose moe_exchange = padded");
  return {};
}

Status check_expert_overlap(const Layout& l) {
  const std::string knob = "overlap.overlap_moe_expert_parallel_comm";
  if (!l.config.overlap.overlap_moe_expert_parallel_comm) return {};
  if (!l.model.is_moe() || l.ep == 1)
    return fail(ErrorCode::kBadArgument, fmt::format("{} with {} = {}: no token travels", knob, kEp, l.ep),
                fmt::format("raise {}, or leave the overlap off", kEp));
  if (l.micro_batches == 1)
    return fail(ErrorCode::kBadArgument, fmt::format("{} with one micro-batch a step: none runs beside it", knob),
                "raise train.global_batch_size or lower train.micro_batch_size");
  return {};
}

// Who records choices and who takes recorded ones.
Status resolve_routing(Layout& l) {
  const std::string& replay = l.config.parallel.moe_router_replay;
  if (replay.empty()) return {};
  const std::string given = fmt::format("parallel.moe_router_replay = {}", replay);
  if (l.config.parallel.moe_router_force_load_balancing)
    return fail(ErrorCode::kBadArgument, given + " with parallel.moe_router_force_load_balancing",
                "choices go by turns or by the record: give one of the two");
  const bool reference = replay == "reference", exact = l.config.precision.recipe == Recipe::kFp32;
  l.records_routing = replay == "record" || (reference && exact && l.mesh.world_size() == 1);
  l.replays_routing = replay != "record" && !(reference && exact);
  if (l.records_routing && l.config.host.device == Device::kCuda)
    return fail(ErrorCode::kUnavailable, given + " with host.device = cuda: choices are recorded on the CPU",
                "record with host.device = cpu and give the file here");
  return {};
}

int64_t expert_tensor_ranks(const ParallelConfig& p) {
  return p.expert_tensor_parallel_size == 0 ? p.tensor_model_parallel_size : p.expert_tensor_parallel_size;
}

int64_t encoder_ranks(const ParallelConfig& p) {
  const int64_t tp =
      p.encoder_tensor_model_parallel_size > 0 ? p.encoder_tensor_model_parallel_size : p.tensor_model_parallel_size;
  return tp * p.encoder_pipeline_model_parallel_size;
}

int64_t model_ranks(const ParallelConfig& p) {
  return p.context_parallel_size * (p.tensor_model_parallel_size * p.pipeline_model_parallel_size + encoder_ranks(p));
}

// Ranks of the run: what holds the model once, any number of times, and what the experts' sizes divide.
Result<int64_t> world_of(const ParallelConfig& p) {
  const int64_t etp = expert_tensor_ranks(p);
  const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size;
  const int64_t stage = std::lcm(dense, p.expert_model_parallel_size * etp);
  const int64_t least = stage * p.pipeline_model_parallel_size + p.context_parallel_size * encoder_ranks(p);
  const int64_t world = p.gpus == 0 ? least : p.gpus;
  const int64_t encoder = encoder_ranks(p), once = model_ranks(p);
  if (world % once != 0)
    return fail(ErrorCode::kBadArgument,
                encoder > 0
                    ? fmt::format("parallel.gpus = {} is no multiple of encoder + tensor × pipeline = {} + {} × {} "
                                  "= {}",
                                  world, encoder, p.tensor_model_parallel_size, p.pipeline_model_parallel_size, once)
                    : fmt::format("parallel.gpus = {} is no multiple of tensor × context × pipeline = {} × {} × {} "
                                  "= {}",
                                  world, p.tensor_model_parallel_size, p.context_parallel_size,
                                  p.pipeline_model_parallel_size, once),
                fmt::format("data parallelism is what is left: gpus = {} × dp", once));
  if (world % least != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("parallel.gpus = {} is no multiple of expert tensor × expert × pipeline = {} × {} × {}",
                            world, etp, p.expert_model_parallel_size, p.pipeline_model_parallel_size),
                fmt::format("experts lie over tensor and data parallel GPUs: gpus = {} × n", least));
  return world;
}

}  // namespace

int64_t Layout::bucket_elements() const {
  const DataParallelConfig& d = config.data_parallel;
  if (d.bucket_size > 0) return d.bucket_size;
  if (shards_gradients()) return std::numeric_limits<int64_t>::max();  // a layer is a unit, whatever its size
  // Buckets hide nothing without overlap, and off the first stage their messages are not on the critical path.
  if (!d.overlap_grad_reduce || pp > 1) return std::numeric_limits<int64_t>::max();
  return std::max(int64_t{40'000'000}, int64_t{1'000'000} * dp);
}

Layout Layout::of_role(MeshRole other) const {
  Layout l = *this;
  l.role = other;
  l.tp = mesh.tp(other);
  l.pp = mesh.pp(other);
  l.sequence_parallel = sequence_parallel && l.tp > 1;
  if (other == MeshRole::kEncoder) l.stages = {{Chunk{.encoder = true}}};
  return l;
}

namespace {

// The strategy is settled again from what is left of it; so are routers' choices. A gather that follows from another
// knob is none without replicas, and nobody is told of a knob that nobody gave.
Status settle_idle(const Config& asked, Layout& l) {
  MB_TRY(settle_idle_knobs(asked, l));
  const bool gathers = l.config.data_parallel.overlap_param_gather;
  MB_TRY(resolve_data_parallel(l.config));
  if (!has_replicas(l)) l.config.data_parallel.overlap_param_gather = gathers;
  return resolve_routing(l);
}

Status check_learning_rate(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  const bool decays = o.lr_decay_style != LrDecay::kConstant && o.lr_warmup_iters < config.train.train_iters;
  if (!decays || o.min_lr <= o.lr) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("optimizer.min_lr = {} is above optimizer.lr = {}, from which it decays", o.min_lr, o.lr),
              fmt::format("set optimizer.min_lr to at most {}", o.lr));
}

// A schedule lists every call of a step, and plan and bubble walk it: some seconds for as many.
Status check_schedule_length(const Layout& l) {
  constexpr int64_t kMostCalls = int64_t{1} << 19;
  const int64_t chunks = int64_t{l.pp} * l.config.parallel.virtual_pipeline_model_parallel_size;
  if (l.micro_batches * chunks <= kMostCalls) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("train.global_batch_size = {} makes {} micro-batches, and as many times {} chunk{} of the "
                          "pipeline is more than a schedule's {} forward calls",
                          l.global_batch, l.micro_batches, chunks, chunks == 1 ? "" : "s", kMostCalls),
              "lower train.global_batch_size, or raise train.micro_batch_size or parallel.gpus");
}

Status check_micro_batches(const Layout& l) {
  MB_TRY(check_schedule_length(l));
  return check_expert_overlap(l);
}

// Knobs that mean something on a GPU alone.
Status check_device_knobs(const Config& config) {
  if (config.host.device == Device::kCuda) {
    if (!config.profiling.reference_work) return {};
    return fail(ErrorCode::kBadArgument, "profiling.reference_work is done beside steps of CPU ranks",
                "leave it out with host.device = cuda, where the GPU's own clock is shared with nobody");
  }
  if (config.profiling.use_nsys_profiler)
    return fail(ErrorCode::kBadArgument, "profiling.use_nsys_profiler = true needs host.device = cuda",
                "leave it off: CPU runs are traced without nsys");
  if (config.host.share_device)
    return fail(ErrorCode::kBadArgument, "host.share_device = true needs host.device = cuda",
                "leave it off: on the CPU ranks are threads anyway");
  return {};
}

Status check_batch(const Layout& l) {
  const int64_t per_step = l.micro_batch * l.dp;
  if (l.global_batch % per_step == 0) return {};
  const int64_t replica = l.global_batch % l.dp == 0 ? l.global_batch / l.dp : 0;
  return fail(ErrorCode::kBadArgument,
              fmt::format("train.global_batch_size = {} is no multiple of micro_batch_size × dp = {} × {} = {}",
                          l.global_batch, l.micro_batch, l.dp, per_step),
              fmt::format("make it a multiple of {}{}", per_step,
                          replica > 0 ? fmt::format(", or choose a micro_batch_size that divides {}", replica) : ""));
}

// What says nothing of the mapping.
Status check_others(const Config& config) {
  MB_TRY(check_learning_rate(config));
  return check_device_knobs(config);
}

}  // namespace

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
  MB_TRY(at_least(p.context_parallel_size, 1, "parallel.context_parallel_size"));
  MB_TRY(at_least(p.expert_model_parallel_size, 1, kEp));
  MB_ASSIGN(const int64_t world, world_of(p));
  l.tp = static_cast<int>(p.tensor_model_parallel_size);
  l.cp = static_cast<int>(p.context_parallel_size);
  l.pp = static_cast<int>(p.pipeline_model_parallel_size);
  l.dp = static_cast<int>(world / model_ranks(p));
  l.ep = static_cast<int>(p.expert_model_parallel_size);
  l.etp = static_cast<int>(expert_tensor_ranks(p));
  l.sequence_parallel = p.sequence_parallel_on() && l.tp > 1;
  l.micro_batch = config.train.micro_batch_size;
  l.sequence = l.packed() ? config.packing.packed_sequence_size : config.train.seq_length;
  if (l.model.is_encoder_decoder())
    l.encoder_sequence =
        config.train.encoder_seq_length > 0 && !l.packed() ? config.train.encoder_seq_length : l.sequence;
  l.global_batch = config.train.global_batch_size;
  MB_TRY(at_least(config.model.make_vocab_size_divisible_by, 1, "model.make_vocab_size_divisible_by"));
  const int64_t vocab_unit = config.model.make_vocab_size_divisible_by * l.tp;
  l.vocab = (l.model.vocab_size + vocab_unit - 1) / vocab_unit * vocab_unit;
  l.compute = config.precision.recipe == Recipe::kFp32 ? DType::kF32 : DType::kBf16;
  MB_TRY(check_encoder(l));
  MB_TRY(check_lengths(l));
  ParallelSizes sizes;
  MB_TRY(resolve_context_parallel(l, sizes));
  MB_TRY(check_tensor_parallel(l));
  MB_TRY(resolve_tp_overlap(l));
  MB_TRY(check_memory_rules(l));
  MB_TRY(check_precision(config, l.model));
  MB_TRY(check_expert_parallel(l));
  MB_TRY(check_batch(l));
  l.micro_batches = static_cast<int>(l.global_batch / (l.micro_batch * l.dp));
  MB_TRY(check_micro_batches(l));
  sizes.tp = l.tp;
  sizes.pp = l.pp;
  sizes.dp = l.dp;
  sizes.dp_instances = static_cast<int>(config.data_parallel.num_distributed_optimizer_instances);
  sizes.encoder_pp = static_cast<int>(p.encoder_pipeline_model_parallel_size);
  sizes.encoder_tp = static_cast<int>(encoder_ranks(p));
  sizes.ep = l.ep;
  if (l.model.is_moe()) sizes.etp = l.etp;
  MB_ASSIGN(l.mesh, Mesh::make(sizes));
  MB_TRY(settle_idle(config, l));
  MB_TRY(profile_window(config, l.mesh.world_size()));
  const bool reads_counts = config.host.device == Device::kCuda && l.exchanges_tokens() &&
                            config.parallel.moe_exchange == MoeExchange::kCounts;
  MB_TRY(check_graphs(config.host, l.model.moe.num_experts, reads_counts));
  MB_TRY(check_fault(config.debug.inject_fault, l.mesh.world_size(), config.host.device == Device::kCuda));
  MB_TRY(check_others(config));
  MB_TRY(check_placement(l));
  MB_TRY(split_stages(l));
  MB_TRY(check_layers_of_chunks(l));
  MB_TRY(check_encoder_stages(l));
  return l;
}

}  // namespace mbb::trainer
