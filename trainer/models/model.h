// Model shapes as data: one struct that describes every family the trainer builds, and the table of named sizes.
//
// All counts are elements, all *_size and *_dim are widths in elements, layers count from 0. Names follow Megatron-Core
// where it has one. The vocabulary is the one that is trained (padding for tensor parallelism is the builder's).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer {

enum class Family { kGpt, kLlama, kNemotron, kQwen2, kQwen3, kMixtral, kQwen3Moe, kGptOss, kDeepSeekV3, kT5 };

enum class NormKind {
  kRms,          // x / rms(x) · w
  kLayerNorm,    // (x − mean) / std · w + b
  kLayerNorm1p,  // (x − mean) / std · (1 + w) + b; w starts at 0
};

enum class Activation {
  kSwiglu,         // silu(gate) · up
  kClampedSwiglu,  // g = min(gate, limit), u = clamp(up, ±limit): g · sigmoid(alpha · g) · (u + 1)
  kGeglu,          // gelu_tanh(gate) · up
  kGelu,           // exact, by erf
  kGeluTanh,       // the tanh approximation
  kRelu,
  kSquaredRelu,  // max(x, 0)²
};

enum class PositionKind { kRope, kLearned, kRelativeBias };

enum class RopeScaling { kNone, kLlama3, kYarn };

// Rotary embedding of `rotary_dim` = fraction · head_dim leading elements of a head (MLA: of the rope part).
struct RopeShape {
  double theta = 10000.0;
  double fraction = 1.0;
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  std::int64_t original_max_positions = 0;
  double low_freq_factor = 1.0;  // llama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // yarn
  double beta_slow = 1.0;
  double mscale = 0.0;  // yarn, DeepSeek's form; 0: cos and sin are multiplied by 0.1 ln(factor) + 1
  double mscale_all_dim =
      0.0;               // yarn, DeepSeek's form: the softmax scale is multiplied by (0.1 · this · ln(factor) + 1)²
  bool truncate = true;  // yarn: whether the correction range is rounded to whole dimensions

  bool operator==(const RopeShape&) const = default;
};

enum class RouterScore { kSoftmax, kSigmoid };

enum class RouterOrder {
  kScoreThenTopK,  // score over all experts, then keep k
  kTopKThenScore,  // keep k logits, then score over those
};

// f_e is the share of the kept (token, expert) pairs that went to expert e, P_e its mean score over all tokens. (The
// Hugging Face loss is top_k times this and takes all layers' tokens together.)
enum class AuxLoss {
  kNone,
  kBatch,     // num_experts · Σ f_e · P_e over the micro-batch, summed over layers
  kSequence,  // the same per sequence, then averaged
};

// num_experts 0: a dense model.
struct MoeShape {
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  std::int64_t expert_ffn_hidden_size = 0;
  std::int64_t shared_ffn_hidden_size = 0;  // all shared experts together; 0: none
  RouterScore score = RouterScore::kSoftmax;
  RouterOrder order = RouterOrder::kScoreThenTopK;
  bool normalize_top_k = false;  // kept weights are divided by their sum
  double routed_scaling = 1.0;   // multiplies the kept weights
  std::int64_t num_groups = 1;   // group-limited top-k: experts in groups, a group's score is the sum of its best two
  std::int64_t top_k_groups = 1;
  bool bias_correction = false;  // a bias per expert that steers selection only, moved by load after each step
  double bias_update_rate = 1e-3;
  bool router_bias = false;  // the router's linear layer has a bias of its own, trained like a weight
  std::int64_t first_dense_layers = 0;
  AuxLoss aux_loss = AuxLoss::kNone;
  double aux_loss_coefficient = 0.0;
  double z_loss_coefficient = 0.0;

  bool operator==(const MoeShape&) const = default;
};

// Multi-head latent attention; kv_lora_rank 0: ordinary attention. A query or key head is nope + rope wide.
struct MlaShape {
  std::int64_t q_lora_rank = 0;  // 0 with kv_lora_rank > 0: queries are projected directly from hidden
  std::int64_t kv_lora_rank = 0;
  std::int64_t nope_head_dim = 0;
  std::int64_t rope_head_dim = 0;
  std::int64_t v_head_dim = 0;

  bool operator==(const MlaShape&) const = default;
};

struct ModelShape {
  std::string name;
  Family family = Family::kLlama;
  std::int64_t num_layers = 0;  // of the decoder
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  // of dense layers
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // key/value heads
  std::int64_t head_dim = 0;          // Megatron's kv_channels; heads · head_dim need not equal hidden_size
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  Activation activation = Activation::kSwiglu;
  double activation_limit = 7.0;  // clamped SwiGLU only
  double activation_alpha = 1.702;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm of each query and key head, over head_dim, before RoPE
  PositionKind position = PositionKind::kRope;
  RopeShape rope;
  std::int64_t relative_buckets = 32;  // relative bias only: one table a stack, shared by its layers
  std::int64_t relative_max_distance = 128;
  bool tied_embeddings = false;
  bool scale_attention = true;  // false (T5): scores are not divided by sqrt(head_dim)
  double logit_scale = 1.0;     // multiplies the hidden state before the LM head (tied T5: hidden_size^-0.5)
  double init_std = 0.02;

  std::int64_t sliding_window = 0;    // a token sees itself and window − 1 before it; 0: none
  std::vector<bool> sliding_pattern;  // layer i slides iff pattern[i mod size]; empty: no layer does
  bool attention_sinks = false;       // one trained logit a head in the softmax's denominator

  MoeShape moe;
  MlaShape mla;
  std::int64_t num_mtp_layers = 0;
  double mtp_loss_scale = 0.1;
  std::int64_t num_encoder_layers = 0;  // > 0: encoder-decoder, every decoder layer has cross attention

  bool operator==(const ModelShape&) const = default;

  bool gated() const {
    return activation == Activation::kSwiglu || activation == Activation::kClampedSwiglu ||
           activation == Activation::kGeglu;
  }
  std::int64_t mlp_matrices() const { return gated() ? 3 : 2; }
  bool is_moe() const { return moe.num_experts > 0; }
  bool is_moe_layer(std::int64_t layer) const { return is_moe() && layer >= moe.first_dense_layers; }
  bool is_mla() const { return mla.kv_lora_rank > 0; }
  bool is_encoder_decoder() const { return num_encoder_layers > 0; }
  bool is_sliding_layer(std::int64_t layer) const {
    return sliding_window > 0 && !sliding_pattern.empty() &&
           sliding_pattern[static_cast<std::size_t>(layer) % sliding_pattern.size()];
  }
  std::int64_t query_size() const { return num_attention_heads * head_dim; }
  std::int64_t kv_size() const { return num_query_groups * head_dim; }
  // Width of a query or key head, and of a value head, in the attention core.
  std::int64_t qk_head_dim() const { return is_mla() ? mla.nope_head_dim + mla.rope_head_dim : head_dim; }
  std::int64_t v_head_dim() const { return is_mla() ? mla.v_head_dim : head_dim; }
  // Elements of a head that RoPE rotates.
  std::int64_t rotary_dim() const;
  // What scores are multiplied by before the softmax (includes YaRN's correction of DeepSeek's form).
  double softmax_scale() const;
};

// Every named size, in the order they are listed.
std::span<const ModelShape> all_models();

// The row of that name (case, '_' and '.' versus '-' do not matter); an error that names the nearest ones.
Result<ModelShape> find_model(std::string_view name);

// Sets shape fields by Megatron's names ("num_layers", "hidden_size", "kv_channels", ...; the list is
// override_keys()). If the width of a head was hidden_size / num_attention_heads and only those change, it follows,
// as Megatron's kv_channels does; likewise query groups follow heads in a model without grouped queries, and
// ffn_hidden_size never follows. Keys the family has no use for, and shapes that validate() refuses, are errors.
using ShapeOverride = std::pair<std::string, std::int64_t>;
Result<ModelShape> with_overrides(ModelShape shape, std::span<const ShapeOverride> overrides);
std::span<const std::string_view> override_keys();

// The rules every shape obeys (positive widths, heads divisible by groups, even rotary width, top_k ≤ experts, ...).
Status validate(const ModelShape& shape);

// Angle per position of each rotated pair, rotary_dim() / 2 of them, scaling included.
std::vector<double> rope_inverse_frequencies(const ModelShape& shape);
// What cos and sin are multiplied by (1 without YaRN).
double rope_attention_factor(const ModelShape& shape);

const char* name(Family family);
const char* name(NormKind kind);
const char* name(Activation activation);
const char* name(PositionKind kind);

}  // namespace mbb::trainer
