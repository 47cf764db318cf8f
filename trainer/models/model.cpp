// Looking up, overriding and checking model shapes, and what follows from a shape alone.
#include "trainer/models/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

// Other spellings people use for a row of the table.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"llama3-405b", "llama3.1-405b"},    {"gpt2-1558m", "gpt2-1.5b"},   {"gpt2-xl", "gpt2-1.5b"},
    {"deepseek-v3-671b", "deepseek-v3"}, {"deepseekv3", "deepseek-v3"},
};

std::string normalized(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c == '_' || c == '.' || c == ' ') c = '-';
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return out;
}

// The three closest names, best first.
template <typename Names>
std::string nearest_three(std::string_view wanted, const Names& names) {
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (std::string_view name : names) ranked.emplace_back(edit_distance(wanted, normalized(name)), name);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ranked.resize(std::min<std::size_t>(ranked.size(), 3));
  std::string text;
  for (const auto& [distance, name] : ranked) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// Where an override lands. Keys are Megatron-Core's names.
struct Override {
  std::string_view key;
  std::int64_t& (*field)(ModelShape&);
  bool (*applies)(const ModelShape&);
};

bool always(const ModelShape&) {
  return true;
}
bool moe_only(const ModelShape& shape) {
  return shape.is_moe();
}
bool mla_only(const ModelShape& shape) {
  return shape.is_mla();
}
bool not_mla(const ModelShape& shape) {
  return !shape.is_mla();
}
bool encoder_only(const ModelShape& shape) {
  return shape.is_encoder_decoder();
}
bool decoder_only(const ModelShape& shape) {
  return !shape.is_encoder_decoder();
}
bool sliding_only(const ModelShape& shape) {
  return shape.sliding_window > 0;
}

using Shape = ModelShape;
constexpr Override kOverrides[] = {
    {"num_layers", [](Shape& s) -> std::int64_t& { return s.num_layers; }, always},
    {"hidden_size", [](Shape& s) -> std::int64_t& { return s.hidden_size; }, always},
    {"ffn_hidden_size", [](Shape& s) -> std::int64_t& { return s.ffn_hidden_size; }, always},
    {"num_attention_heads", [](Shape& s) -> std::int64_t& { return s.num_attention_heads; }, always},
    {"num_query_groups", [](Shape& s) -> std::int64_t& { return s.num_query_groups; }, not_mla},
    {"kv_channels", [](Shape& s) -> std::int64_t& { return s.head_dim; }, not_mla},
    {"vocab_size", [](Shape& s) -> std::int64_t& { return s.vocab_size; }, always},
    {"max_position_embeddings", [](Shape& s) -> std::int64_t& { return s.max_positions; }, always},
    {"window_size", [](Shape& s) -> std::int64_t& { return s.sliding_window; }, sliding_only},
    {"num_experts", [](Shape& s) -> std::int64_t& { return s.moe.num_experts; }, moe_only},
    {"moe_router_topk", [](Shape& s) -> std::int64_t& { return s.moe.top_k; }, moe_only},
    {"moe_ffn_hidden_size", [](Shape& s) -> std::int64_t& { return s.moe.expert_ffn_hidden_size; }, moe_only},
    {"moe_shared_expert_intermediate_size", [](Shape& s) -> std::int64_t& { return s.moe.shared_ffn_hidden_size; },
     moe_only},
    {"moe_router_num_groups", [](Shape& s) -> std::int64_t& { return s.moe.num_groups; }, moe_only},
    {"moe_router_group_topk", [](Shape& s) -> std::int64_t& { return s.moe.top_k_groups; }, moe_only},
    {"moe_first_dense_layers", [](Shape& s) -> std::int64_t& { return s.moe.first_dense_layers; }, moe_only},
    {"q_lora_rank", [](Shape& s) -> std::int64_t& { return s.mla.q_lora_rank; }, mla_only},
    {"kv_lora_rank", [](Shape& s) -> std::int64_t& { return s.mla.kv_lora_rank; }, mla_only},
    {"qk_head_dim", [](Shape& s) -> std::int64_t& { return s.mla.nope_head_dim; }, mla_only},
    {"qk_pos_emb_head_dim", [](Shape& s) -> std::int64_t& { return s.mla.rope_head_dim; }, mla_only},
    {"v_head_dim", [](Shape& s) -> std::int64_t& { return s.mla.v_head_dim; }, mla_only},
    {"mtp_num_layers", [](Shape& s) -> std::int64_t& { return s.num_mtp_layers; }, decoder_only},
    {"encoder_num_layers", [](Shape& s) -> std::int64_t& { return s.num_encoder_layers; }, encoder_only},
};

Status rule(bool holds, const ModelShape& shape, std::string_view text, std::string hint = {}) {
  if (holds) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("model {}: {}", shape.name, text), std::move(hint));
}

// No model comes near it, and with validate_total() it keeps counts inside 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 24;
// A step program lists the ops of every layer (some 100 kB each); the deepest published models have hundreds.
constexpr std::int64_t kMostLayers = 8192;

// A bound on the parameters, in floating point so that absurd sizes cannot overflow on the way.
Status validate_total(const ModelShape& shape) {
  auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double h = real(shape.hidden_size);
  const double attention = h * (2 * real(shape.num_attention_heads) + 2 * real(shape.num_query_groups)) *
                               real(std::max(shape.qk_head_dim(), shape.v_head_dim())) +
                           real(shape.mla.q_lora_rank + shape.mla.kv_lora_rank) *
                               (h + real(shape.num_attention_heads) * real(shape.qk_head_dim() + shape.v_head_dim()));
  const double feed_forward = real(shape.mlp_matrices()) * (h + 1) *
                              (real(shape.ffn_hidden_size) + real(shape.moe.shared_ffn_hidden_size) +
                               real(shape.moe.num_experts) * real(shape.moe.expert_ffn_hidden_size + 1));
  const double layers = real(shape.num_layers + shape.num_encoder_layers + shape.num_mtp_layers);
  const double total = layers * (2 * attention + feed_forward + 2 * h * h) +
                       h * (2 * real(shape.vocab_size) + real(shape.max_positions)) +
                       2 * real(shape.relative_buckets) * real(shape.num_attention_heads);
  return rule(total < 0x1p60, shape,
              fmt::format("these sizes make about {:.1e} parameters, which cannot be right", total));
}

Status validate_widths(const ModelShape& shape) {
  const std::pair<std::string_view, std::int64_t> positive[] = {
      {"hidden_size", shape.hidden_size},
      {"ffn_hidden_size", shape.ffn_hidden_size},
      {"num_attention_heads", shape.num_attention_heads},
      {"num_query_groups", shape.num_query_groups},
      {"kv_channels", shape.head_dim},
      {"vocab_size", shape.vocab_size},
      {"max_position_embeddings", shape.max_positions},
  };
  for (const auto& [key, value] : positive)
    MB_TRY(
        rule(value >= 1 && value <= kLargest, shape, fmt::format("{} is {}, not within 1..{}", key, value, kLargest)));
  MB_TRY(rule(shape.num_layers >= 1 && shape.num_layers <= kMostLayers, shape,
              fmt::format("num_layers is {}, not within 1..{}", shape.num_layers, kMostLayers)));
  MB_TRY(rule(shape.num_attention_heads % shape.num_query_groups == 0, shape,
              fmt::format("num_attention_heads {} is no multiple of num_query_groups {}", shape.num_attention_heads,
                          shape.num_query_groups),
              "set num_query_groups to a divisor of num_attention_heads"));
  MB_TRY(rule(shape.norm_eps > 0 && shape.norm_eps < 1, shape,
              fmt::format("norm epsilon is {}, not within (0, 1)", shape.norm_eps)));
  MB_TRY(rule(shape.sliding_window >= 0, shape, "window_size is negative"));
  MB_TRY(rule(shape.num_mtp_layers >= 0 && shape.num_mtp_layers <= 16, shape,
              fmt::format("mtp_num_layers is {}, not within 0..16", shape.num_mtp_layers)));
  MB_TRY(rule(shape.num_encoder_layers >= 0 && shape.num_encoder_layers <= kMostLayers, shape,
              fmt::format("encoder_num_layers is {}, not within 0..{}", shape.num_encoder_layers, kMostLayers)));
  MB_TRY(rule(shape.relative_buckets >= 4 && shape.relative_buckets <= kLargest &&
                  shape.relative_max_distance > shape.relative_buckets / 4,
              shape, "relative positions need 4 buckets or more, and a greatest distance above a quarter of them"));
  return {};
}

Status validate_position(const ModelShape& shape) {
  if (shape.position != PositionKind::kRope) return {};
  const std::int64_t rotary = shape.rotary_dim();
  const std::int64_t whole = shape.is_mla() ? shape.mla.rope_head_dim : shape.head_dim;
  MB_TRY(rule(rotary >= 2 && rotary % 2 == 0 && rotary <= whole, shape,
              fmt::format("RoPE turns {} of {} head elements: it needs an even number of 2 or more", rotary, whole),
              "set kv_channels (or qk_pos_emb_head_dim) to a multiple of 4"));
  MB_TRY(rule(shape.rope.theta > 1, shape, fmt::format("rotary base is {}, not above 1", shape.rope.theta)));
  if (shape.rope.scaling == RopeScaling::kNone) return {};
  MB_TRY(rule(shape.rope.factor >= 1 && shape.rope.original_max_positions >= 1, shape,
              "rotary scaling needs a factor of 1 or more and the original number of positions"));
  return rule(shape.rope.scaling != RopeScaling::kLlama3 || shape.rope.high_freq_factor > shape.rope.low_freq_factor,
              shape, "rotary scaling llama3 needs high_freq_factor above low_freq_factor");
}

Status validate_moe(const ModelShape& shape) {
  const MoeShape& moe = shape.moe;
  MB_TRY(rule(moe.num_experts >= 0 && moe.num_experts <= 65536, shape,
              fmt::format("num_experts is {}, not within 0..65536", moe.num_experts)));
  if (!shape.is_moe()) return {};
  MB_TRY(rule(moe.top_k >= 1 && moe.top_k <= moe.num_experts, shape,
              fmt::format("moe_router_topk is {}, not within 1..num_experts ({})", moe.top_k, moe.num_experts)));
  MB_TRY(rule(moe.expert_ffn_hidden_size >= 1 && moe.expert_ffn_hidden_size <= kLargest, shape,
              fmt::format("moe_ffn_hidden_size is {}, not within 1..{}", moe.expert_ffn_hidden_size, kLargest)));
  MB_TRY(rule(moe.shared_ffn_hidden_size >= 0 && moe.shared_ffn_hidden_size <= kLargest, shape,
              fmt::format("moe_shared_expert_intermediate_size is {}, not within 0..{}", moe.shared_ffn_hidden_size,
                          kLargest)));
  MB_TRY(
      rule(moe.num_groups >= 1 && moe.num_experts % moe.num_groups == 0, shape,
           fmt::format("num_experts {} is no multiple of moe_router_num_groups {}", moe.num_experts, moe.num_groups)));
  MB_TRY(rule(moe.top_k_groups >= 1 && moe.top_k_groups <= moe.num_groups, shape,
              fmt::format("moe_router_group_topk is {}, not within 1..moe_router_num_groups ({})", moe.top_k_groups,
                          moe.num_groups)));
  MB_TRY(rule(moe.num_groups == 1 || moe.num_experts / moe.num_groups >= 2, shape,
              "a router group needs two experts: its score is the sum of its best two"));
  MB_TRY(rule(moe.num_experts / moe.num_groups * moe.top_k_groups >= moe.top_k, shape,
              fmt::format("moe_router_topk {} is more than the {} experts of the groups that may win", moe.top_k,
                          moe.num_experts / moe.num_groups * moe.top_k_groups),
              "raise moe_router_group_topk or num_experts, or lower moe_router_topk"));
  return rule(moe.first_dense_layers >= 0 && moe.first_dense_layers <= shape.num_layers, shape,
              fmt::format("moe_first_dense_layers is {}, not within 0..num_layers ({})", moe.first_dense_layers,
                          shape.num_layers),
              "a proxy with fewer layers sets moe_first_dense_layers too");
}

Status validate_mla(const ModelShape& shape) {
  if (!shape.is_mla()) return {};
  const MlaShape& mla = shape.mla;
  auto within = [](std::int64_t value, std::int64_t least) { return value >= least && value <= kLargest; };
  MB_TRY(rule(within(mla.q_lora_rank, 0) && within(mla.kv_lora_rank, 1) && within(mla.nope_head_dim, 1) &&
                  within(mla.rope_head_dim, 1) && within(mla.v_head_dim, 1),
              shape, "MLA needs q_lora_rank of 0 or more, and positive kv_lora_rank and head widths"));
  MB_TRY(rule(shape.position == PositionKind::kRope, shape, "MLA needs rotary positions"));
  return rule(shape.num_query_groups == shape.num_attention_heads, shape, "MLA has a key/value head per query head");
}

double yarn_mscale(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

// Blend of the original and the stretched angle: 1 keeps the original (high frequencies), 0 stretches.
double yarn_keep(const RopeShape& rope, std::int64_t rotary_dim, std::int64_t pair) {
  const auto dim = static_cast<double>(rotary_dim);
  // The pair index at which a wave makes `turns` turns within the original context.
  auto pair_of_turns = [&](double turns) {
    return dim * std::log(static_cast<double>(rope.original_max_positions) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = pair_of_turns(rope.beta_fast);
  double high = pair_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  return 1.0 - std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
}

double llama3_scaled(const RopeShape& rope, double angle) {
  const double wavelength = 2.0 * std::numbers::pi / angle;
  const double turns = static_cast<double>(rope.original_max_positions) / wavelength;
  if (turns >= rope.high_freq_factor) return angle;
  if (turns <= rope.low_freq_factor) return angle / rope.factor;
  const double keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - keep) * angle / rope.factor + keep * angle;
}

}  // namespace

std::int64_t ModelShape::rotary_dim() const {
  if (position != PositionKind::kRope) return 0;
  const std::int64_t whole = is_mla() ? mla.rope_head_dim : head_dim;
  return static_cast<std::int64_t>(std::floor(static_cast<double>(whole) * rope.fraction));
}

double ModelShape::softmax_scale() const {
  if (!scale_attention) return 1.0;
  double scale = 1.0 / std::sqrt(static_cast<double>(qk_head_dim()));
  if (rope.scaling == RopeScaling::kYarn && rope.mscale_all_dim > 0) {
    const double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
    scale *= m * m;
  }
  return scale;
}

std::vector<double> rope_inverse_frequencies(const ModelShape& shape) {
  const std::int64_t dim = shape.rotary_dim();
  std::vector<double> angles;
  for (std::int64_t pair = 0; pair < dim / 2; ++pair) {
    const double angle = std::pow(shape.rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
    switch (shape.rope.scaling) {
      case RopeScaling::kNone: angles.push_back(angle); break;
      case RopeScaling::kLlama3: angles.push_back(llama3_scaled(shape.rope, angle)); break;
      case RopeScaling::kYarn: {
        const double keep = yarn_keep(shape.rope, dim, pair);
        angles.push_back(angle * keep + angle / shape.rope.factor * (1.0 - keep));
        break;
      }
    }
  }
  return angles;
}

double rope_attention_factor(const ModelShape& shape) {
  const RopeShape& rope = shape.rope;
  if (rope.scaling != RopeScaling::kYarn) return 1.0;
  if (rope.mscale > 0 && rope.mscale_all_dim > 0)
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  return yarn_mscale(rope.factor, 1.0);
}

Result<ModelShape> find_model(std::string_view wanted) {
  std::string key = normalized(wanted);
  for (const auto& [alias, target] : kAliases)
    if (key == normalized(alias)) key = normalized(target);
  std::vector<std::string_view> names;
  for (const ModelShape& shape : all_models()) {
    if (normalized(shape.name) == key) return shape;
    names.push_back(shape.name);
  }
  return fail(ErrorCode::kNotFound, fmt::format("no model is named \"{}\"", wanted),
              fmt::format("nearest: {}; all: mbbench list models; a file: --model path/to/config.json",
                          nearest_three(key, names)));
}

std::span<const std::string_view> override_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> out;
    for (const Override& entry : kOverrides) out.push_back(entry.key);
    return out;
  }();
  return keys;
}

Result<ModelShape> with_overrides(ModelShape shape, std::span<const ShapeOverride> overrides) {
  const ModelShape before = shape;
  auto given = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const ShapeOverride& o) { return o.first == key; });
  };
  for (const auto& [key, value] : overrides) {
    const auto* entry = std::find_if(std::begin(kOverrides), std::end(kOverrides),
                                     [&, &wanted = key](const Override& o) { return o.key == wanted; });
    if (entry == std::end(kOverrides))
      return fail(ErrorCode::kBadArgument, fmt::format("\"{}\" is no field of a model's shape", key),
                  fmt::format("nearest: {}", nearest_three(key, override_keys())));
    if (!entry->applies(before))
      return fail(ErrorCode::kBadArgument,
                  fmt::format("model {} has no {}: its architecture lacks that part", before.name, key));
    entry->field(shape) = value;
  }
  // An override changes sizes, never the architecture.
  constexpr std::string_view kStays = "an override cannot take that part out of the model";
  MB_TRY(rule(shape.is_mla() == before.is_mla(), shape,
              fmt::format("kv_lora_rank is {}, not positive: {}", shape.mla.kv_lora_rank, kStays)));
  MB_TRY(rule(shape.is_moe() == before.is_moe(), shape,
              fmt::format("num_experts is {}, not positive: {}", shape.moe.num_experts, kStays)));
  MB_TRY(rule(shape.is_encoder_decoder() == before.is_encoder_decoder(), shape,
              fmt::format("encoder_num_layers is {}, not positive: {}", shape.num_encoder_layers, kStays)));
  MB_TRY(rule(shape.num_attention_heads >= 1, shape,
              fmt::format("num_attention_heads is {}, not positive", shape.num_attention_heads)));
  if (before.num_query_groups == before.num_attention_heads && !given("num_query_groups"))
    shape.num_query_groups = shape.num_attention_heads;
  if (shape.is_mla()) {
    shape.head_dim = shape.qk_head_dim();
  } else if (before.query_size() == before.hidden_size && !given("kv_channels") &&
             (shape.hidden_size != before.hidden_size || shape.num_attention_heads != before.num_attention_heads)) {
    MB_TRY(rule(shape.hidden_size % shape.num_attention_heads == 0, shape,
                fmt::format("hidden_size {} is no multiple of num_attention_heads {}", shape.hidden_size,
                            shape.num_attention_heads),
                "set kv_channels to the width of a head"));
    shape.head_dim = shape.hidden_size / shape.num_attention_heads;
  }
  MB_TRY(validate(shape));
  return shape;
}

Status validate(const ModelShape& shape) {
  MB_TRY(validate_mla(shape));
  MB_TRY(validate_widths(shape));
  MB_TRY(validate_position(shape));
  MB_TRY(validate_moe(shape));
  return validate_total(shape);
}

const char* name(Family family) {
  switch (family) {
    case Family::kGpt: return "gpt";
    case Family::kLlama: return "llama";
    case Family::kNemotron: return "nemotron";
    case Family::kQwen2: return "qwen2";
    case Family::kQwen3: return "qwen3";
    case Family::kMixtral: return "mixtral";
    case Family::kQwen3Moe: return "qwen3-moe";
    case Family::kGptOss: return "gpt-oss";
    case Family::kDeepSeekV3: return "deepseek-v3";
    case Family::kT5: return "t5";
  }
  return "?";
}

const char* name(NormKind kind) {
  switch (kind) {
    case NormKind::kRms: return "rmsnorm";
    case NormKind::kLayerNorm: return "layernorm";
    case NormKind::kLayerNorm1p: return "layernorm1p";
  }
  return "?";
}

const char* name(Activation activation) {
  switch (activation) {
    case Activation::kSwiglu: return "swiglu";
    case Activation::kClampedSwiglu: return "clamped-swiglu";
    case Activation::kGeglu: return "geglu";
    case Activation::kGelu: return "gelu";
    case Activation::kGeluTanh: return "gelu-tanh";
    case Activation::kRelu: return "relu";
    case Activation::kSquaredRelu: return "squared-relu";
  }
  return "?";
}

const char* name(PositionKind kind) {
  switch (kind) {
    case PositionKind::kRope: return "rope";
    case PositionKind::kLearned: return "learned";
    case PositionKind::kRelativeBias: return "relative-bias";
  }
  return "?";
}

}  // namespace mbb::trainer
