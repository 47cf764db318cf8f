// The rules a configuration must keep, each named with its knob.
#include "trainer/run/layout.h"

#include <fmt/core.h>

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

// What the step builder can build today; the model table knows more.
Status check_family(const ModelShape& m) {
  const bool llama = m.norm == NormKind::kRms && m.activation == Activation::kSwiglu &&
                     m.position == PositionKind::kRope && m.rope.scaling == RopeScaling::kNone &&
                     m.rope.fraction == 1.0 && !m.rope.interleaved && !m.is_moe() && !m.is_mla() &&
                     !m.is_encoder_decoder() && !m.qkv_bias && !m.attention_out_bias && !m.mlp_bias && !m.qk_norm &&
                     !m.tied_embeddings && m.sliding_window == 0 && m.num_mtp_layers == 0 && !m.attention_sinks;
  if (llama) return {};
  return fail(
      ErrorCode::kUnavailable,
      fmt::format("model {} needs more than dense RMSNorm/RoPE/SwiGLU layers, which is what can be trained", m.name),
      "its shapes, FLOPs and parameters are known: `mbbench list models`");
}

Result<ModelShape> shape_of(const Config& config) {
  MB_ASSIGN(ModelShape m, find_model(config.model.name));
  const ModelConfig& o = config.model;
  const auto replace = [](int64_t& field, int64_t value) {
    if (value != 0) field = value;
  };
  const bool heads_given = o.num_attention_heads != 0 || o.hidden_size != 0;
  replace(m.num_layers, o.num_layers);
  replace(m.hidden_size, o.hidden_size);
  replace(m.ffn_hidden_size, o.ffn_hidden_size);
  replace(m.num_attention_heads, o.num_attention_heads);
  replace(m.num_query_groups, o.num_query_groups);
  replace(m.vocab_size, o.vocab_size);
  if (o.kv_channels != 0) {
    m.head_dim = o.kv_channels;
  } else if (heads_given) {
    MB_TRY(divides(m.num_attention_heads, "model.num_attention_heads", m.hidden_size, "model.hidden_size"));
    m.head_dim = m.hidden_size / m.num_attention_heads;
  }
  return m;
}

Status check_model(const ModelShape& m) {
  for (const auto& [value, knob] : {std::pair{m.num_layers, "model.num_layers"},
                                    {m.hidden_size, "model.hidden_size"},
                                    {m.ffn_hidden_size, "model.ffn_hidden_size"},
                                    {m.num_attention_heads, "model.num_attention_heads"},
                                    {m.num_query_groups, "model.num_query_groups"},
                                    {m.head_dim, "model.kv_channels"},
                                    {m.vocab_size, "model.vocab_size"}})
    MB_TRY(at_least(value, 1, knob));
  MB_TRY(divides(m.num_query_groups, "model.num_query_groups", m.num_attention_heads, "model.num_attention_heads"));
  if (m.head_dim % 2 != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("model.kv_channels = {} must be even for RoPE", m.head_dim));
  return check_family(m);
}

Status check_tensor_parallel(const Layout& l) {
  MB_TRY(divides(l.tp, kTp, l.model.num_attention_heads, "model.num_attention_heads"));
  MB_TRY(divides(l.tp, kTp, l.model.num_query_groups, "model.num_query_groups"));
  MB_TRY(divides(l.tp, kTp, l.model.ffn_hidden_size, "model.ffn_hidden_size"));
  MB_TRY(divides(l.tp, kTp, l.vocab, "model.vocab_size"));
  if (l.sequence_parallel) MB_TRY(divides(l.tp, kTp, l.sequence, "train.seq_length (sequence parallel)"));
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

Result<Layout> resolve(const Config& config) {
  Layout l;
  l.config = config;
  MB_ASSIGN(l.model, shape_of(config));
  MB_TRY(check_model(l.model));
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
  l.sequence = config.train.seq_length;
  l.global_batch = config.train.global_batch_size;
  l.vocab = l.model.vocab_size;
  l.compute = config.precision.recipe == Recipe::kBf16 ? DType::kBf16 : DType::kF32;
  MB_TRY(check_tensor_parallel(l));
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
  MB_ASSIGN(l.mesh, Mesh::make(sizes));
  split_stages(l);
  return l;
}

}  // namespace mbb::trainer
