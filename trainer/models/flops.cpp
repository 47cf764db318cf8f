// Closed formulas of model FLOPs and parameter counts.
#include "trainer/models/flops.h"

#include <algorithm>

namespace mbb::trainer {
namespace {

// (forward + dgrad + wgrad) × (multiply + add).
constexpr double kTrain = 6.0;

double real(std::int64_t value) {
  return static_cast<double>(value);
}

// Weights of one layer's attention projections; a token costs kTrain times that.
double attention_weights(const ModelShape& shape) {
  const double h = real(shape.hidden_size);
  const double a = real(shape.num_attention_heads);
  if (!shape.is_mla()) return h * real(shape.query_size() + 2 * shape.kv_size()) + real(shape.query_size()) * h;
  const MlaShape& mla = shape.mla;
  const double qk = real(mla.nope_head_dim + mla.rope_head_dim);
  const double queries = mla.q_lora_rank > 0 ? real(mla.q_lora_rank) * (h + a * qk) : h * a * qk;
  const double keys_values = real(mla.kv_lora_rank) * (h + a * real(mla.nope_head_dim + mla.v_head_dim));
  return queries + keys_values + h * real(mla.rope_head_dim) + a * real(mla.v_head_dim) * h;
}

// Multiply-adds of QKᵀ and PV for one query-key pair, over all heads.
double core_width(const ModelShape& shape) {
  return real(shape.num_attention_heads) * real(shape.qk_head_dim() + shape.v_head_dim());
}

double mlp_weights(const ModelShape& shape, std::int64_t ffn) {
  return real(shape.hidden_size) * real(ffn) * real(shape.mlp_matrices());
}

double moe_weights_per_token(const ModelShape& shape) {
  return mlp_weights(shape, shape.moe.expert_ffn_hidden_size * shape.moe.top_k + shape.moe.shared_ffn_hidden_size);
}

double causal_pairs(const BatchLengths& batch, FlopsConvention convention) {
  return convention == FlopsConvention::kCausal ? batch.s2() / 2.0 : batch.s2();
}

double layer_core(const ModelShape& shape, std::int64_t layer, const BatchLengths& batch, FlopsConvention convention) {
  if (!shape.is_sliding_layer(layer)) return kTrain * core_width(shape) * causal_pairs(batch, convention);
  // Sequences that fit the window are ordinary causal ones.
  BatchLengths inside, beyond;
  for (const SequenceGroup& group : batch.groups)
    (group.length <= shape.sliding_window ? inside : beyond).groups.push_back(group);
  return kTrain * core_width(shape) * (causal_pairs(inside, convention) + beyond.window_pairs(shape.sliding_window));
}

void add_encoder(const ModelShape& shape, const BatchLengths& batch, ModelFlops& flops) {
  const double layers = real(shape.num_encoder_layers);
  const double te = batch.encoder_tokens();
  flops.attention_linear += kTrain * layers * te * attention_weights(shape);
  flops.attention_core += kTrain * layers * core_width(shape) * batch.encoder_s2();
  flops.mlp += kTrain * layers * te * mlp_weights(shape, shape.ffn_hidden_size);
  // Cross attention of every decoder layer: queries and output from the decoder's tokens, keys and values from the
  // encoder's.
  const double h = real(shape.hidden_size);
  const double decoder_layers = real(shape.num_layers);
  flops.attention_linear +=
      kTrain * decoder_layers *
      (batch.tokens() * 2.0 * h * real(shape.query_size()) + te * 2.0 * h * real(shape.kv_size()));
  flops.attention_core += kTrain * decoder_layers * core_width(shape) * batch.cross_pairs();
}

std::int64_t norm_parameters(const ModelShape& shape) {
  return shape.hidden_size * (shape.norm == NormKind::kRms ? 1 : 2);
}

// Attention of one layer; cross attention has no QK norm, sinks or RoPE of its own.
std::int64_t attention_parameters(const ModelShape& shape) {
  const std::int64_t q = shape.query_size(), kv = shape.kv_size(), h = shape.hidden_size;
  std::int64_t count = static_cast<std::int64_t>(attention_weights(shape));
  if (shape.is_mla()) {
    count += shape.mla.q_lora_rank + shape.mla.kv_lora_rank;  // norms of the latents
  } else {
    if (shape.qkv_bias) count += q + 2 * kv;
    if (shape.qk_norm) count += 2 * shape.head_dim;
  }
  if (shape.attention_out_bias) count += h;
  if (shape.attention_sinks) count += shape.num_attention_heads;
  return count;
}

std::int64_t mlp_parameters(const ModelShape& shape, std::int64_t ffn) {
  std::int64_t count = shape.hidden_size * ffn * shape.mlp_matrices();
  if (shape.mlp_bias) count += ffn * (shape.mlp_matrices() - 1) + shape.hidden_size;
  return count;
}

std::int64_t router_parameters(const ModelShape& shape) {
  return shape.moe.num_experts * (shape.hidden_size + (shape.moe.router_bias ? 1 : 0));
}

}  // namespace

const char* name(FlopsConvention convention) {
  return convention == FlopsConvention::kCausal ? "causal" : "full";
}

BatchLengths BatchLengths::packed(const std::vector<std::int64_t>& document_lengths) {
  BatchLengths batch;
  for (const std::int64_t length : document_lengths) batch.groups.push_back({length, 1, 0});
  return batch;
}

double BatchLengths::tokens() const {
  double sum = 0;
  for (const SequenceGroup& g : groups) sum += real(g.count) * real(g.length);
  return sum;
}

double BatchLengths::encoder_tokens() const {
  double sum = 0;
  for (const SequenceGroup& g : groups) sum += real(g.count) * real(g.encoder_length);
  return sum;
}

double BatchLengths::s2() const {
  double sum = 0;
  for (const SequenceGroup& g : groups) sum += real(g.count) * real(g.length) * real(g.length);
  return sum;
}

double BatchLengths::encoder_s2() const {
  double sum = 0;
  for (const SequenceGroup& g : groups) sum += real(g.count) * real(g.encoder_length) * real(g.encoder_length);
  return sum;
}

double BatchLengths::cross_pairs() const {
  double sum = 0;
  for (const SequenceGroup& g : groups) sum += real(g.count) * real(g.length) * real(g.encoder_length);
  return sum;
}

double BatchLengths::window_pairs(std::int64_t window_size) const {
  double sum = 0;
  for (const SequenceGroup& g : groups) {
    const double w = real(std::min(window_size, g.length));
    sum += real(g.count) * (w * real(g.length) - w * (w - 1.0) / 2.0);
  }
  return sum;
}

ModelFlops model_flops(const ModelShape& shape, const BatchLengths& batch, FlopsConvention convention) {
  ModelFlops flops;
  const double tokens = batch.tokens();
  const double linear = kTrain * tokens * attention_weights(shape);
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    flops.attention_linear += linear;
    flops.attention_core += layer_core(shape, layer, batch, convention);
    if (shape.is_moe_layer(layer)) {
      flops.moe += kTrain * tokens * moe_weights_per_token(shape);
    } else {
      flops.mlp += kTrain * tokens * mlp_weights(shape, shape.ffn_hidden_size);
    }
  }
  if (shape.is_encoder_decoder()) add_encoder(shape, batch, flops);
  // An MTP layer is one more of the last kind, behind a projection of two hidden vectors to one.
  const double h = real(shape.hidden_size);
  const double mtp_feed_forward =
      shape.is_moe() ? moe_weights_per_token(shape) : mlp_weights(shape, shape.ffn_hidden_size);
  flops.mtp = real(shape.num_mtp_layers) * (linear + kTrain * core_width(shape) * causal_pairs(batch, convention) +
                                            kTrain * tokens * (mtp_feed_forward + 2.0 * h * h));
  flops.logits = kTrain * tokens * h * real(shape.vocab_size) * real(1 + shape.num_mtp_layers);
  return flops;
}

double flops_per_token(const ModelShape& shape, std::int64_t seq_length, FlopsConvention convention,
                       std::int64_t encoder_length) {
  return model_flops(shape, BatchLengths::uniform(seq_length, 1, encoder_length), convention).total() /
         real(seq_length);
}

ParameterCount count_parameters(const ModelShape& shape) {
  ParameterCount count;
  const std::int64_t h = shape.hidden_size;
  const std::int64_t moe_layers = shape.is_moe() ? shape.num_layers - shape.moe.first_dense_layers : 0;
  const std::int64_t dense_layers = shape.num_layers - moe_layers;
  const std::int64_t expert = mlp_parameters(shape, shape.moe.expert_ffn_hidden_size);
  const std::int64_t shared =
      shape.moe.shared_ffn_hidden_size > 0 ? mlp_parameters(shape, shape.moe.shared_ffn_hidden_size) : 0;

  count.embedding = shape.vocab_size * h;
  if (shape.position == PositionKind::kLearned) count.embedding += shape.max_positions * h;
  if (shape.position == PositionKind::kRelativeBias)
    count.embedding += shape.relative_buckets * shape.num_attention_heads * (shape.is_encoder_decoder() ? 2 : 1);
  count.attention = shape.num_layers * attention_parameters(shape);
  count.mlp = dense_layers * mlp_parameters(shape, shape.ffn_hidden_size);
  count.norms = (2 * shape.num_layers + 1) * norm_parameters(shape);
  if (shape.is_encoder_decoder()) {
    count.attention += (shape.num_encoder_layers + shape.num_layers) * attention_parameters(shape);
    count.mlp += shape.num_encoder_layers * mlp_parameters(shape, shape.ffn_hidden_size);
    count.norms += (2 * shape.num_encoder_layers + 1 + shape.num_layers) * norm_parameters(shape);
  }
  if (shape.is_moe()) {
    count.router = moe_layers * router_parameters(shape);
    count.experts = moe_layers * shape.moe.num_experts * expert;
    count.shared_experts = moe_layers * shared;
  }
  count.lm_head = shape.tied_embeddings ? 0 : shape.vocab_size * h;

  // Two input norms, the 2h → h projection, the layer with its norms, a final norm. Embedding and head are shared.
  const std::int64_t mtp_frame = 2 * h * h + 5 * norm_parameters(shape) + attention_parameters(shape);
  const std::int64_t mtp_dense = mtp_frame + mlp_parameters(shape, shape.ffn_hidden_size);
  const std::int64_t mtp_moe = mtp_frame + router_parameters(shape) + shared;
  count.mtp = shape.num_mtp_layers * (shape.is_moe() ? mtp_moe + shape.moe.num_experts * expert : mtp_dense);

  count.active = count.total();
  if (shape.is_moe())
    count.active -= (moe_layers + shape.num_mtp_layers) * (shape.moe.num_experts - shape.moe.top_k) * expert;
  return count;
}

}  // namespace mbb::trainer
