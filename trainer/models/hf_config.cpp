// Reading config.json of the known architectures.
#include "trainer/models/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

using Json = nlohmann::json;

// Reads keys of one object and remembers the first thing that was wrong, so that a reader is a plain list of keys.
class Reader {
 public:
  Reader(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  bool has(const char* key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  std::int64_t integer(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const Json* value = get(key, otherwise.has_value());
    if (value == nullptr) return otherwise.value_or(1);
    if (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      return wrong(key, "is larger than any size"), std::int64_t{1};
    }
    if (!value->is_number_integer()) return wrong(key, fmt::format("is {}, not a whole number", shown(*value))), 1;
    return value->get<std::int64_t>();
  }

  double number(const char* key, std::optional<double> otherwise = std::nullopt) {
    const Json* value = get(key, otherwise.has_value());
    if (value == nullptr) return otherwise.value_or(1.0);
    if (!value->is_number()) return wrong(key, fmt::format("is {}, not a number", shown(*value))), 1.0;
    return value->get<double>();
  }

  bool boolean(const char* key, bool otherwise) {
    const Json* value = get(key, true);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) return wrong(key, fmt::format("is {}, not true or false", shown(*value))), otherwise;
    return value->get<bool>();
  }

  std::string text(const char* key, std::optional<std::string> otherwise = std::nullopt) {
    const Json* value = get(key, otherwise.has_value());
    if (value == nullptr) return otherwise.value_or("");
    if (!value->is_string()) return wrong(key, fmt::format("is {}, not a text", shown(*value))), std::string();
    return value->get<std::string>();
  }

  // An object inside this one; null when absent.
  const Json* object(const char* key) {
    const Json* value = get(key, true);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) return wrong(key, fmt::format("is {}, not an object", shown(*value))), nullptr;
    return value;
  }

  const Json* list(const char* key) {
    const Json* value = get(key, true);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) return wrong(key, fmt::format("is {}, not a list", shown(*value))), nullptr;
    return value;
  }

  // A setting with one value this program builds.
  void only(const char* key, bool holds, const std::string& supported) {
    if (!holds) wrong(key, fmt::format("is {}; only {} is built here", shown(object_.value(key, Json())), supported));
  }

  void wrong(const char* key, const std::string& what) {
    if (!error_) error_ = Error{ErrorCode::kBadFile, fmt::format("{}: key \"{}\" {}", file_, key, what), ""};
  }

  void absorb(const Reader& inner) {
    if (!error_) error_ = inner.error_;
  }

  const std::optional<Error>& error() const { return error_; }
  const std::string& file() const { return file_; }

 private:
  static std::string shown(const Json& value) {
    return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
  }

  const Json* get(const char* key, bool optional) {
    const auto found = object_.find(key);
    if (found != object_.end() && !found->is_null()) return &*found;
    if (!optional) wrong(key, "is missing");
    return nullptr;
  }

  const Json& object_;
  std::string file_;
  std::optional<Error> error_;
};

void read_rope_scaling(Reader& reader, const Json& object, ModelShape& shape) {
  Reader scaling(object, reader.file());
  RopeShape& rope = shape.rope;
  const std::string kind =
      scaling.has("rope_type") ? scaling.text("rope_type") : scaling.text("type", std::string("default"));
  if (kind == "llama3" || kind == "yarn") {
    rope.scaling = kind == "yarn" ? RopeScaling::kYarn : RopeScaling::kLlama3;
    rope.factor = scaling.number("factor");
    rope.original_max_positions = scaling.integer("original_max_position_embeddings");
  }
  if (kind == "llama3") {
    rope.low_freq_factor = scaling.number("low_freq_factor");
    rope.high_freq_factor = scaling.number("high_freq_factor");
  } else if (kind == "yarn") {
    rope.beta_fast = scaling.number("beta_fast", 32.0);
    rope.beta_slow = scaling.number("beta_slow", 1.0);
    rope.mscale = scaling.number("mscale", 0.0);
    rope.mscale_all_dim = scaling.number("mscale_all_dim", 0.0);
    rope.truncate = scaling.boolean("truncate", true);
    if (scaling.has("attention_factor")) scaling.only("attention_factor", false, "the factor YaRN itself gives");
  } else if (kind != "default") {
    scaling.only(scaling.has("rope_type") ? "rope_type" : "type", false, "default, llama3 or yarn");
  }
  reader.absorb(scaling);
}

void read_rope(Reader& reader, ModelShape& shape, double default_theta, double default_fraction) {
  RopeShape& rope = shape.rope;
  rope.theta = reader.number("rope_theta", default_theta);
  rope.fraction = reader.number("partial_rotary_factor", default_fraction);
  if (const Json* parameters = reader.object("rope_parameters")) {
    Reader inner(*parameters, reader.file());
    rope.theta = inner.number("rope_theta", rope.theta);
    rope.fraction = inner.number("partial_rotary_factor", rope.fraction);
    reader.absorb(inner);
    read_rope_scaling(reader, *parameters, shape);
  } else if (const Json* scaling = reader.object("rope_scaling")) {
    read_rope_scaling(reader, *scaling, shape);
  }
}

// Explicit layer kinds, or the older Qwen2 rule: with use_sliding_window, layers from max_window_layers on slide.
void read_sliding(Reader& reader, ModelShape& shape) {
  if (reader.has("use_sliding_window") && !reader.boolean("use_sliding_window", false)) return;
  if (!reader.has("sliding_window")) return;
  const std::int64_t window = reader.integer("sliding_window");
  if (const Json* kinds = reader.list("layer_types")) {
    for (const Json& kind : *kinds) {
      const bool sliding = kind == "sliding_attention";
      if (!sliding && kind != "full_attention")
        reader.only("layer_types", false, "a list of sliding_attention and full_attention");
      shape.sliding_pattern.push_back(sliding);
    }
    if (static_cast<std::int64_t>(shape.sliding_pattern.size()) != shape.num_layers)
      reader.wrong("layer_types",
                   fmt::format("has {} entries for {} layers", shape.sliding_pattern.size(), shape.num_layers));
  } else if (reader.has("max_window_layers")) {
    const std::int64_t first = reader.integer("max_window_layers");
    if (shape.num_layers <= 65536)
      for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) shape.sliding_pattern.push_back(layer >= first);
  } else if (shape.family == Family::kGptOss) {
    shape.sliding_pattern = {true, false};
  } else {
    shape.sliding_pattern = {true};
  }
  bool any = false;
  for (const bool sliding : shape.sliding_pattern) any = any || sliding;
  if (!any) shape.sliding_pattern.clear();
  shape.sliding_window = any ? window : 0;
}

// What Llama and its descendants share.
void read_decoder(Reader& reader, ModelShape& shape, double default_theta) {
  shape.num_layers = reader.integer("num_hidden_layers");
  shape.hidden_size = reader.integer("hidden_size");
  shape.ffn_hidden_size = reader.integer("intermediate_size");
  shape.num_attention_heads = reader.integer("num_attention_heads");
  shape.num_query_groups = reader.integer("num_key_value_heads", shape.num_attention_heads);
  shape.vocab_size = reader.integer("vocab_size");
  shape.max_positions = reader.integer("max_position_embeddings");
  if (reader.has("head_dim")) {
    shape.head_dim = reader.integer("head_dim");
  } else if (shape.num_attention_heads < 1 || shape.hidden_size % shape.num_attention_heads != 0) {
    reader.wrong("hidden_size", fmt::format("is {}, no multiple of num_attention_heads ({}), and head_dim is missing",
                                            shape.hidden_size, shape.num_attention_heads));
  } else {
    shape.head_dim = shape.hidden_size / shape.num_attention_heads;
  }
  shape.tied_embeddings = reader.boolean("tie_word_embeddings", false);
  shape.init_std = reader.number("initializer_range", 0.02);
  read_rope(reader, shape, default_theta, 1.0);
}

void read_rms_swiglu(Reader& reader, ModelShape& shape) {
  shape.norm_eps = reader.number("rms_norm_eps");
  reader.only("hidden_act", reader.text("hidden_act", std::string("silu")) == "silu", "silu");
}

void read_llama(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 10000.0);
  read_rms_swiglu(reader, shape);
  shape.qkv_bias = shape.attention_out_bias = reader.boolean("attention_bias", false);
  shape.mlp_bias = reader.boolean("mlp_bias", false);
}

void read_nemotron(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 10000.0);
  read_rope(reader, shape, 10000.0, 0.5);
  shape.norm = NormKind::kLayerNorm1p;
  shape.norm_eps = reader.number("norm_eps", 1e-5);
  shape.activation = Activation::kSquaredRelu;
  reader.only("hidden_act", reader.text("hidden_act", std::string("relu2")) == "relu2", "relu2");
  shape.qkv_bias = shape.attention_out_bias = reader.boolean("attention_bias", false);
  shape.mlp_bias = reader.boolean("mlp_bias", false);
}

void read_qwen2(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 10000.0);
  read_rms_swiglu(reader, shape);
  shape.qkv_bias = true;
  if (reader.boolean("use_sliding_window", false)) read_sliding(reader, shape);
}

void read_qwen3(Reader& reader, ModelShape& shape) {
  if (!reader.has("head_dim")) reader.integer("head_dim");
  read_decoder(reader, shape, 10000.0);
  read_rms_swiglu(reader, shape);
  shape.qkv_bias = shape.attention_out_bias = reader.boolean("attention_bias", false);
  shape.qk_norm = true;
  if (reader.boolean("use_sliding_window", false)) read_sliding(reader, shape);
}

void read_aux_loss(Reader& reader, MoeShape& moe, double otherwise) {
  moe.aux_loss_coefficient = reader.number("router_aux_loss_coef", otherwise);
  moe.aux_loss = moe.aux_loss_coefficient > 0 ? AuxLoss::kBatch : AuxLoss::kNone;
}

void read_mixtral(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 1e6);
  read_rms_swiglu(reader, shape);
  read_sliding(reader, shape);
  MoeShape& moe = shape.moe;
  moe.num_experts = reader.integer("num_local_experts");
  moe.top_k = reader.integer("num_experts_per_tok");
  moe.expert_ffn_hidden_size = shape.ffn_hidden_size;
  moe.order = RouterOrder::kTopKThenScore;
  reader.only("router_jitter_noise", reader.number("router_jitter_noise", 0.0) == 0.0, "0");
  read_aux_loss(reader, moe, 0.001);
}

void read_qwen3_moe(Reader& reader, ModelShape& shape) {
  read_qwen3(reader, shape);
  MoeShape& moe = shape.moe;
  moe.num_experts = reader.integer("num_experts");
  moe.top_k = reader.integer("num_experts_per_tok");
  moe.expert_ffn_hidden_size = reader.integer("moe_intermediate_size");
  moe.normalize_top_k = reader.boolean("norm_topk_prob", false);
  reader.only("decoder_sparse_step", reader.integer("decoder_sparse_step", 1) == 1, "1");
  if (const Json* dense = reader.list("mlp_only_layers")) reader.only("mlp_only_layers", dense->empty(), "[]");
  read_aux_loss(reader, moe, 0.001);
}

void read_gpt_oss(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 150000.0);
  read_rms_swiglu(reader, shape);
  read_sliding(reader, shape);
  shape.activation = Activation::kClampedSwiglu;
  shape.activation_limit = reader.number("swiglu_limit", 7.0);
  shape.qkv_bias = shape.attention_out_bias = reader.boolean("attention_bias", true);
  shape.mlp_bias = true;
  shape.attention_sinks = true;
  MoeShape& moe = shape.moe;
  moe.num_experts = reader.integer("num_local_experts");
  moe.top_k =
      reader.has("num_experts_per_tok") ? reader.integer("num_experts_per_tok") : reader.integer("experts_per_token");
  moe.expert_ffn_hidden_size = shape.ffn_hidden_size;
  moe.order = RouterOrder::kTopKThenScore;
  moe.router_bias = true;
  read_aux_loss(reader, moe, 0.9);
}

void read_deepseek_v3(Reader& reader, ModelShape& shape) {
  read_decoder(reader, shape, 10000.0);
  read_rms_swiglu(reader, shape);
  shape.rope.interleaved = reader.boolean("rope_interleave", true);
  shape.mla.q_lora_rank = reader.integer("q_lora_rank", 0);
  shape.mla.kv_lora_rank = reader.integer("kv_lora_rank");
  shape.mla.nope_head_dim = reader.integer("qk_nope_head_dim");
  shape.mla.rope_head_dim = reader.integer("qk_rope_head_dim");
  shape.mla.v_head_dim = reader.integer("v_head_dim");
  shape.head_dim = shape.mla.nope_head_dim + shape.mla.rope_head_dim;
  shape.num_query_groups = shape.num_attention_heads;
  reader.only("attention_bias", !reader.boolean("attention_bias", false), "false");

  MoeShape& moe = shape.moe;
  moe.num_experts = reader.integer("n_routed_experts");
  moe.top_k = reader.integer("num_experts_per_tok");
  moe.expert_ffn_hidden_size = reader.integer("moe_intermediate_size");
  const std::int64_t shared = reader.integer("n_shared_experts", 1);
  if (shared < 0 || shared > 65536 || moe.expert_ffn_hidden_size > (std::int64_t{1} << 24)) {
    reader.wrong("n_shared_experts", fmt::format("is {}: no such number of experts of moe_intermediate_size {}", shared,
                                                 moe.expert_ffn_hidden_size));
  } else {
    moe.shared_ffn_hidden_size = shared * moe.expert_ffn_hidden_size;
  }
  moe.score = RouterScore::kSigmoid;
  reader.only("scoring_func", reader.text("scoring_func", std::string("sigmoid")) == "sigmoid", "sigmoid");
  reader.only("topk_method", reader.text("topk_method", std::string("noaux_tc")) == "noaux_tc", "noaux_tc");
  reader.only("moe_layer_freq", reader.integer("moe_layer_freq", 1) == 1, "1");
  moe.normalize_top_k = reader.boolean("norm_topk_prob", true);
  moe.routed_scaling = reader.number("routed_scaling_factor", 2.5);
  moe.num_groups = reader.integer("n_group", 8);
  moe.top_k_groups = reader.integer("topk_group", 4);
  moe.bias_correction = true;
  moe.first_dense_layers = reader.integer("first_k_dense_replace", 3);
  moe.aux_loss_coefficient = reader.number("aux_loss_alpha", 0.0);
  moe.aux_loss = moe.aux_loss_coefficient > 0 ? AuxLoss::kSequence : AuxLoss::kNone;
  shape.num_mtp_layers = reader.integer("num_nextn_predict_layers", 0);
}

void read_gpt2(Reader& reader, ModelShape& shape) {
  shape.num_layers = reader.integer("n_layer");
  shape.hidden_size = reader.integer("n_embd");
  shape.num_attention_heads = shape.num_query_groups = reader.integer("n_head");
  shape.vocab_size = reader.integer("vocab_size");
  shape.max_positions = reader.integer("n_positions");
  const bool divides = shape.num_attention_heads >= 1 && shape.hidden_size % shape.num_attention_heads == 0;
  if (!divides) reader.wrong("n_embd", fmt::format("is {}, no multiple of n_head", shape.hidden_size));
  shape.head_dim = divides ? shape.hidden_size / shape.num_attention_heads : 1;
  const bool small = shape.hidden_size <= (std::int64_t{1} << 24);
  shape.ffn_hidden_size = reader.integer("n_inner", small ? 4 * shape.hidden_size : 1);
  shape.norm = NormKind::kLayerNorm;
  shape.norm_eps = reader.number("layer_norm_epsilon", 1e-5);
  const std::string activation = reader.text("activation_function", std::string("gelu_new"));
  shape.activation = activation == "gelu"   ? Activation::kGelu
                     : activation == "relu" ? Activation::kRelu
                                            : Activation::kGeluTanh;
  reader.only(
      "activation_function",
      activation == "gelu" || activation == "relu" || activation == "gelu_new" || activation == "gelu_pytorch_tanh",
      "gelu_new, gelu_pytorch_tanh, gelu or relu");
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.position = PositionKind::kLearned;
  shape.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  shape.init_std = reader.number("initializer_range", 0.02);
  shape.scale_attention = reader.boolean("scale_attn_weights", true);
  reader.only("scale_attn_by_inverse_layer_idx", !reader.boolean("scale_attn_by_inverse_layer_idx", false), "false");
}

void read_t5(Reader& reader, ModelShape& shape) {
  shape.num_encoder_layers = reader.integer("num_layers");
  shape.num_layers = reader.integer("num_decoder_layers", shape.num_encoder_layers);
  shape.hidden_size = reader.integer("d_model");
  shape.ffn_hidden_size = reader.integer("d_ff");
  shape.num_attention_heads = shape.num_query_groups = reader.integer("num_heads");
  shape.head_dim = reader.integer("d_kv");
  shape.vocab_size = reader.integer("vocab_size");
  shape.max_positions = reader.integer("n_positions", 512);
  shape.norm_eps = reader.number("layer_norm_epsilon", 1e-6);
  const std::string projection = reader.text("feed_forward_proj", std::string("relu"));
  shape.activation = projection == "gated-gelu" ? Activation::kGeglu : Activation::kRelu;
  reader.only("feed_forward_proj", projection == "relu" || projection == "gated-gelu", "relu or gated-gelu");
  shape.position = PositionKind::kRelativeBias;
  shape.relative_buckets = reader.integer("relative_attention_num_buckets", 32);
  shape.relative_max_distance = reader.integer("relative_attention_max_distance", 128);
  shape.scale_attention = false;
  shape.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  if (shape.tied_embeddings && shape.hidden_size > 0)
    shape.logit_scale = 1.0 / std::sqrt(static_cast<double>(shape.hidden_size));
}

struct Architecture {
  std::string_view name;
  std::string_view model_type;
  Family family;
  void (*read)(Reader&, ModelShape&);
};

constexpr Architecture kArchitectures[] = {
    {"GPT2LMHeadModel", "gpt2", Family::kGpt, read_gpt2},
    {"LlamaForCausalLM", "llama", Family::kLlama, read_llama},
    {"NemotronForCausalLM", "nemotron", Family::kNemotron, read_nemotron},
    {"Qwen2ForCausalLM", "qwen2", Family::kQwen2, read_qwen2},
    {"Qwen3ForCausalLM", "qwen3", Family::kQwen3, read_qwen3},
    {"MixtralForCausalLM", "mixtral", Family::kMixtral, read_mixtral},
    {"Qwen3MoeForCausalLM", "qwen3_moe", Family::kQwen3Moe, read_qwen3_moe},
    {"GptOssForCausalLM", "gpt_oss", Family::kGptOss, read_gpt_oss},
    {"DeepseekV3ForCausalLM", "deepseek_v3", Family::kDeepSeekV3, read_deepseek_v3},
    {"T5ForConditionalGeneration", "t5", Family::kT5, read_t5},
};

// By "architectures" when it is there, which "model_type" may not contradict, else by "model_type".
Result<const Architecture*> find_architecture(const Json& root, const std::string& file) {
  std::string known;
  for (const Architecture& entry : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  const auto list = root.find("architectures");
  const auto type = root.find("model_type");
  const char* key = "architectures";
  std::string wanted;
  if (list != root.end() && list->is_array() && !list->empty() && list->front().is_string()) {
    wanted = list->front().get<std::string>();
  } else if (type != root.end() && type->is_string()) {
    key = "model_type";
    wanted = type->get<std::string>();
  } else {
    return fail(ErrorCode::kBadFile,
                fmt::format("{}: key \"architectures\" is missing, and so is \"model_type\"", file),
                "known architectures: " + known);
  }
  for (const Architecture& entry : kArchitectures) {
    if (wanted != entry.name && wanted != entry.model_type) continue;
    if (type != root.end() && *type != entry.model_type)
      return fail(ErrorCode::kBadFile,
                  fmt::format("{}: key \"model_type\" is {}, and key \"{}\" is \"{}\", whose type is \"{}\"", file,
                              printable(type->dump(-1, ' ', true, Json::error_handler_t::replace), 60), key, wanted,
                              entry.model_type),
                  "the two name different architectures: correct one, or leave model_type out");
    return &entry;
  }
  return fail(ErrorCode::kBadFile,
              fmt::format("{}: key \"{}\" is \"{}\", which is not built here", file, key, printable(wanted, 60)),
              "known architectures: " + known);
}

}  // namespace

Result<ModelShape> parse_hf_config(std::string_view text, const std::string& file, const std::string& name) {
  const Json root = Json::parse(text.begin(), text.end(), nullptr, false);
  if (root.is_discarded()) return fail(ErrorCode::kBadFile, fmt::format("{} is no JSON", file));
  if (!root.is_object()) return fail(ErrorCode::kBadFile, fmt::format("{} is no JSON object", file));
  MB_ASSIGN(const Architecture* architecture, find_architecture(root, file));
  ModelShape shape;
  shape.name = name;
  shape.family = architecture->family;
  Reader reader(root, file);
  architecture->read(reader, shape);
  if (reader.error()) return tl::unexpected<Error>(*reader.error());
  Status status = validate(shape);
  if (status.has_value()) return shape;
  status.error().code = ErrorCode::kBadFile;
  return tl::unexpected<Error>(std::move(status.error()).during("reading " + file));
}

Result<ModelShape> read_hf_config(const std::string& path) {
  const std::filesystem::path file = model_file(path);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored))
    return fail(ErrorCode::kNotFound, fmt::format("{} is no file", file.string()),
                "--model takes a name (mbbench list models) or the path of a config.json");
  constexpr std::uintmax_t kLargestConfigBytes = 16 << 20;
  if (std::filesystem::file_size(file, ignored) > kLargestConfigBytes)
    return fail(ErrorCode::kBadFile, fmt::format("{} is larger than any config.json (16 MiB)", file.string()));
  std::ifstream stream(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) return fail(ErrorCode::kIo, fmt::format("reading {} failed", file.string()));
  const std::string folder =
      std::filesystem::absolute(file, ignored).lexically_normal().parent_path().filename().string();
  return parse_hf_config(text, file.string(), folder.empty() ? file.stem().string() : folder);
}

bool is_model_path(std::string_view name_or_path) {
  return name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".json");
}

std::filesystem::path model_file(std::string_view path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  return std::filesystem::is_directory(file, ignored) ? file / "config.json" : file;
}

Result<ModelShape> resolve_model(const std::string& name_or_path) {
  return is_model_path(name_or_path) ? read_hf_config(name_or_path) : find_model(name_or_path);
}

}  // namespace mbb::trainer
