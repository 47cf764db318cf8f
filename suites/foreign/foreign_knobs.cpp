// The rules, and the model by its shape.
#include "suites/foreign/foreign_knobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "profiler/base/text.h"
#include "suites/foreign/foreign_config.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

// A foreign setting whose name or values are not ours. `section`: only there; empty anywhere.
struct Rule {
  const char* section;
  const char* name;
  const char* knob;
};

constexpr Rule kRules[] = {
    {"dataset", "sequence_length", "train.seq_length"},
    {"dataset", "seq_length", "train.seq_length"},
    {"", "num_moe_experts", "model.num_experts"},
    {"", "batch_p2p_communication", "overlap.batch_p2p_comm"},
    {"rng", "seed", "train.seed"},
    {"", "seq-len", "train.seq_length"},  // llm.q's options
    {"", "batch-size", "train.micro_batch_size"},
};

// Settings that another takes the place of: read, and said by that one.
constexpr std::string_view kSaidElsewhere[] = {"bf16",       "fp16",       "fp8",          "fp4",
                                               "fp8_recipe", "fp4_recipe", "params_dtype", "fp32"};

constexpr std::string_view kPrecisionName = "mixed_precision";

// Sections of Bridge whose settings describe other things than the training step.
constexpr std::string_view kNotTheStep[] = {"checkpoint", "tokenizer", "logger", "ft", "straggler"};

std::string_view last_part(std::string_view key) {
  return key.substr(key.rfind('.') == std::string_view::npos ? 0 : key.rfind('.') + 1);
}
std::string_view section_of(std::string_view key) {
  return key.find('.') == std::string_view::npos ? std::string_view() : key.substr(0, key.find('.'));
}

// "torch.bfloat16" -> "bf16", "AttnBackend(5)" -> "auto", "True" -> "true", "[a, b]" -> "a,b".
std::string our_value(std::string_view value) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"torch.bfloat16", "bf16"},
                                                                      {"torch.float32", "fp32"},
                                                                      {"torch.float16", "fp16"},
                                                                      {"torch.uint8", "fp8"},
                                                                      {"torch.float8_e4m3fn", "fp8"},
                                                                      {"True", "true"},
                                                                      {"False", "false"},
                                                                      {"AttnBackend.auto", "auto"},
                                                                      {"AttnBackend.flash", "flash"},
                                                                      {"AttnBackend.fused", "fused"},
                                                                      {"AttnBackend.unfused", "unfused"}};
  for (const auto& [theirs, ours] : kWords)
    if (value == theirs) return std::string(ours);
  constexpr std::string_view kBackends[] = {"", "flash", "fused", "unfused", "local", "auto"};
  if (const size_t at = value.find("AttnBackend("); at != std::string_view::npos)
    if (const auto number = parse_int(value.substr(at + 12, 1)); number && *number > 0 && *number < 6)
      return std::string(kBackends[*number]);
  if (value.size() >= 2 && value.front() == '[' && value.back() == ']')
    return replace_all(replace_all(replace_all(value.substr(1, value.size() - 2), " ", ""), "'", ""), "\"", "");
  return std::string(value);
}

std::optional<std::string> knob_of(const ForeignSetting& one) {
  const std::string_view name = last_part(one.key), section = section_of(one.key);
  for (const Rule& rule : kRules)
    if (name == rule.name && (*rule.section == '\0' || section == rule.section)) return rule.knob;
  // A section's own word for itself is no knob of ours ("model.name" is the shape's, found below).
  if (std::find(std::begin(kNotTheStep), std::end(kNotTheStep), section) != std::end(kNotTheStep)) return std::nullopt;
  if (name == "name" || name == "path" || name == "kind" || name == "device") return std::nullopt;
  const auto found = trainer::knobs().find(name);
  return found ? std::optional((*found)->key) : std::nullopt;
}

// Bridge's names for whole recipes: "bf16_mixed", "bf16_with_fp8_current_scaling_mixed", ...
std::optional<std::string> recipe_named(std::string_view value) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {{"nvfp4", "nvfp4"},
                                                                      {"mxfp8", "mxfp8"},
                                                                      {"fp8_delayed", "fp8_delayed"},
                                                                      {"fp8_current", "fp8_current"},
                                                                      {"fp8_subchannel", "fp8_blockwise"},
                                                                      {"fp8_blockwise", "fp8_blockwise"},
                                                                      {"fp8_mixed", "fp8_delayed"}};
  for (const auto& [theirs, ours] : kParts)
    if (value.find(theirs) != std::string_view::npos) return std::string(ours);
  if (value == "bf16_mixed" || value == "bf16" || value == "bf16-mixed") return "bf16";
  if (value == "fp32" || value == "32") return "fp32";
  return std::nullopt;
}

// bf16, fp8 and fp8_recipe together are one recipe; a name says it whole.
std::optional<std::string> recipe_of(const std::vector<ForeignSetting>& settings) {
  for (const ForeignSetting& one : settings)
    if (last_part(one.key) == kPrecisionName && !is_unset(one.value)) return recipe_named(one.value);
  const auto is = [&](std::string_view key, std::string_view wanted) {
    return std::any_of(settings.begin(), settings.end(), [&](const ForeignSetting& one) {
      return last_part(one.key) == key && to_lower(one.value) == wanted;
    });
  };
  const auto set = [&](std::string_view key) -> std::string {
    for (const ForeignSetting& one : settings)
      if (last_part(one.key) == key && !is_unset(one.value) && one.value != "False" && one.value != "false")
        return one.value;
    return "";
  };
  if (!set("fp4").empty()) return "nvfp4";
  if (!set("fp8").empty()) {
    const std::string recipe = set("fp8_recipe");
    if (recipe == "delayed" || recipe.empty()) return "fp8_delayed";
    if (recipe == "tensorwise" || recipe == "current") return "fp8_current";
    if (recipe == "blockwise") return "fp8_blockwise";
    if (recipe == "mxfp8") return "mxfp8";
    return std::nullopt;
  }
  if (is("bf16", "true")) return "bf16";
  if (is("fp32", "true") || (is("bf16", "false") && is("fp16", "false"))) return "fp32";
  return std::nullopt;
}

int64_t shape_value(const std::vector<ForeignSetting>& settings, std::string_view name) {
  for (const ForeignSetting& one : settings)
    if (last_part(one.key) == name && section_of(one.key) != "tokenizer")
      if (const auto number = parse_int(one.value)) return *number;
  return 0;
}

struct FoundModel {
  std::string name, note;
  bool whole = false;  // shape and depth are its own
};

// The model of ours whose shape is the settings'; with fewer layers it is a proxy of it.
std::optional<FoundModel> model_of(const std::vector<ForeignSetting>& settings) {
  const int64_t layers = shape_value(settings, "num_layers"), hidden = shape_value(settings, "hidden_size"),
                ffn = shape_value(settings, "ffn_hidden_size"), heads = shape_value(settings, "num_attention_heads"),
                groups = shape_value(settings, "num_query_groups"),
                experts = std::max(shape_value(settings, "num_moe_experts"), shape_value(settings, "num_experts")),
                vocab = shape_value(settings, "vocab_size");
  if (layers == 0 || hidden == 0 || heads == 0) return std::nullopt;
  // Models of one shape are told apart by their vocabulary, which may be padded; without one the first stands.
  const auto off = [&](const trainer::ModelShape& shape) {
    return vocab == 0 ? 0 : std::abs(shape.vocab_size - vocab);
  };
  const trainer::ModelShape *whole = nullptr, *proxy = nullptr;
  std::string others;
  for (const trainer::ModelShape& shape : trainer::all_models()) {
    const bool wide = shape.hidden_size == hidden && shape.num_attention_heads == heads &&
                      (groups == 0 || shape.num_query_groups == groups) && shape.moe.num_experts == experts &&
                      (ffn == 0 || experts > 0 || shape.ffn_hidden_size == ffn);
    if (!wide) continue;
    if (shape.num_layers == layers) {
      if (whole != nullptr && vocab == 0) others += fmt::format(", or {}", shape.name);
      if (whole == nullptr || off(shape) < off(*whole)) whole = &shape;
    }
    const bool nearer = proxy == nullptr || off(shape) < off(*proxy) ||
                        (off(shape) == off(*proxy) && shape.num_layers < proxy->num_layers);
    if (nearer) proxy = &shape;
  }
  if (whole != nullptr)
    return FoundModel{whole->name,
                      others.empty()
                          ? "the model of this shape"
                          : fmt::format("{}{}: of one shape, and no vocab_size tells them apart", whole->name, others),
                      true};
  if (proxy != nullptr)
    return FoundModel{proxy->name, fmt::format("{} with {} of its {} layers", proxy->name, layers, proxy->num_layers)};
  return std::nullopt;
}

constexpr std::string_view kShapeKnobs[] = {"model.hidden_size",
                                            "model.ffn_hidden_size",
                                            "model.num_attention_heads",
                                            "model.num_query_groups",
                                            "model.kv_channels",
                                            "model.vocab_size",
                                            "model.num_experts",
                                            "model.moe_ffn_hidden_size",
                                            "model.moe_router_topk",
                                            "model.num_layers",
                                            "model.max_position_embeddings"};

bool is_shape(std::string_view knob) {
  return std::find(std::begin(kShapeKnobs), std::end(kShapeKnobs), knob) != std::end(kShapeKnobs);
}

class Importer {
 public:
  explicit Importer(const std::vector<ForeignSetting>& settings) : settings_(settings) {}

  ImportedKnobs run() {
    model_ = model_of(settings_);
    if (model_) {
      out_.model_note = model_->note;
      take("model.name", model_->name, {"the shape", model_->name, 0});
    }
    const auto recipe = recipe_of(settings_);
    if (recipe) take("precision.recipe", *recipe, precision_source());
    const bool batch = take_batch_of_llmq();
    for (const ForeignSetting& one : settings_) {
      const bool said = std::find(std::begin(kSaidElsewhere), std::end(kSaidElsewhere), last_part(one.key)) !=
                        std::end(kSaidElsewhere);
      if ((said || last_part(one.key) == kPrecisionName) && recipe) continue;
      if (batch && one.key == kAccumulation) continue;
      setting(one);
    }
    take_lowest_rate();
    note_gpus();
    if (!model_) note_no_model();
    return std::move(out_);
  }

 private:
  static constexpr std::string_view kAccumulation = "grad-accumulation";

  const ImportedKnob* taken(std::string_view knob) const {
    const auto found = std::find_if(out_.knobs.begin(), out_.knobs.end(), [&](const auto& k) { return k.key == knob; });
    return found == out_.knobs.end() ? nullptr : &*found;
  }

  // llm.q's micro-batch a GPU, times its accumulation, times its GPUs; false where one is not said.
  bool take_batch_of_llmq() {
    int64_t sequences = 1;
    const ForeignSetting* from = nullptr;
    for (const std::string_view key : {std::string_view("batch-size"), std::string_view("gpus"), kAccumulation}) {
      const auto one = std::find_if(settings_.begin(), settings_.end(), [&](const auto& s) { return s.key == key; });
      const auto number = one == settings_.end() ? std::nullopt : parse_int(one->value);
      if (!number || *number < 1 || *number > (int64_t{1} << 20)) return false;
      sequences *= *number;
      from = &*one;
    }
    take("train.global_batch_size", std::to_string(sequences), *from);
    return true;
  }

  // Their lowest learning rate is 0 where nothing says another; ours would stand above a small one.
  void take_lowest_rate() {
    if (const ImportedKnob* lr = taken("optimizer.lr"); lr != nullptr && taken("optimizer.min_lr") == nullptr)
      take("optimizer.min_lr", "0", ForeignSetting(lr->from));
  }

  // What is not said of the shape is that of the model which stands where none is named.
  void note_no_model() {
    const std::string usual = trainer::Config{}.model.name;
    constexpr std::string_view kWidths[] = {"num_layers",          "hidden_size",      "ffn_hidden_size",
                                            "num_attention_heads", "num_query_groups", "vocab_size"};
    std::string own, lacking;
    for (const std::string_view width : kWidths) {
      std::string& list = taken(fmt::format("model.{}", width)) != nullptr ? own : lacking;
      list += (list.empty() ? "" : ", ") + std::string(width);
    }
    if (own.empty())
      out_.no_model_note = fmt::format("none is said, and {} stands: model.name says another", usual);
    else
      out_.no_model_note = fmt::format(
          "none of ours has this shape: {} {} laid over {}, a small Llama{}; model.name says another or a config.json",
          own, own.find(',') == std::string::npos ? "is" : "are", usual,
          lacking.empty() ? "" : fmt::format(", whose {} stay", lacking));
  }

  void note_gpus() {
    if (taken("parallel.gpus") != nullptr || out_.knobs.empty()) return;
    trainer::Config config;
    KnobSources sources;
    if (!apply_imported(out_, "", config, sources)) return;
    const auto& p = config.parallel;
    const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size * p.pipeline_model_parallel_size;
    out_.gpus_note = fmt::format(
        "how many GPUs is not said: one replica of the model is taken (TP {} x CP {} x PP {} = {}, "
        "more with experts); parallel.gpus says another number",
        p.tensor_model_parallel_size, p.context_parallel_size, p.pipeline_model_parallel_size, dense);
  }

  ForeignSetting precision_source() const {
    for (const std::string_view key : {kPrecisionName, std::string_view("fp8_recipe"), std::string_view("bf16")})
      for (const ForeignSetting& one : settings_)
        if (last_part(one.key) == key) return one;
    return {};
  }

  void setting(const ForeignSetting& one) {
    const auto knob = knob_of(one);
    if (!knob) {
      out_.not_understood.push_back(one);
      return;
    }
    if (is_unset(one.value) || (one.value == "0" && is_shape(*knob))) return;  // ours stays at its default
    // The model's own longest sequence, where the data's stands beside it.
    if (*knob == "train.seq_length" && section_of(one.key) == "model" && has_data_length()) return;
    if (is_shape(*knob) && model_ && (model_->whole || *knob != "model.num_layers") && is_models_own(*knob, one))
      return;
    take(*knob, our_value(one.value), one);
  }

  bool has_data_length() const {
    return std::any_of(settings_.begin(), settings_.end(), [](const ForeignSetting& one) {
      return section_of(one.key) == "dataset" &&
             (last_part(one.key) == "sequence_length" || last_part(one.key) == "seq_length");
    });
  }

  // Padding and position limits differ between trainers and change no step of ours.
  bool is_models_own(const std::string& knob, const ForeignSetting& one) const {
    const auto shape = trainer::find_model(model_->name);
    if (!shape) return false;
    const std::map<std::string, int64_t> own = {{"model.hidden_size", shape->hidden_size},
                                                {"model.ffn_hidden_size", shape->ffn_hidden_size},
                                                {"model.num_attention_heads", shape->num_attention_heads},
                                                {"model.num_query_groups", shape->num_query_groups},
                                                {"model.kv_channels", shape->head_dim},
                                                {"model.vocab_size", shape->vocab_size},
                                                {"model.num_experts", shape->moe.num_experts},
                                                {"model.num_layers", shape->num_layers}};
    const auto found = own.find(knob);
    return found != own.end() && parse_int(one.value) == found->second;
  }

  // The first setting of a knob stands; a later one that says otherwise is refused, so that it is seen.
  void take(const std::string& knob, std::string value, const ForeignSetting& from) {
    trainer::Config scratch;
    KnobSources sources;
    if (const Status set = trainer::knobs().set_text(scratch, sources, knob, value, {}); !set) {
      out_.refused.push_back({from, set.error().what});
      return;
    }
    const auto same = std::find_if(out_.knobs.begin(), out_.knobs.end(), [&](const auto& k) { return k.key == knob; });
    if (same == out_.knobs.end()) {
      out_.knobs.push_back({knob, std::move(value), from});
    } else if (same->value != value) {
      out_.refused.push_back({from, fmt::format("{} says {} = {}", same->from.key, knob, same->value)});
    }
  }

  const std::vector<ForeignSetting>& settings_;
  std::optional<FoundModel> model_;
  ImportedKnobs out_;
};

}  // namespace

bool is_unset(std::string_view value) {
  return value.empty() || value == "null" || value == "None" || value == "~" || value == "[]" || value == "{}";
}

ImportedKnobs import_knobs(const std::vector<ForeignSetting>& settings) {
  return Importer(settings).run();
}

Status apply_imported(const ImportedKnobs& imported, const std::string& file, trainer::Config& config,
                      KnobSources& sources) {
  for (const ImportedKnob& knob : imported.knobs)
    MB_TRY(trainer::knobs().set_text(config, sources, knob.key, knob.value, {Layer::kSuite, file, knob.from.line, 1}));
  return {};
}

std::string imported_toml(const ImportedKnobs& imported, const std::string& from) {
  std::string text = fmt::format("purpose = {}\n\n[base]\n", json_quote("The configuration of " + from + "."));
  // Other trainers run on GPUs; where they are not here, cells are projected.
  text += "host.device = \"cuda\"\n";
  if (!imported.gpus_note.empty()) text += "# " + imported.gpus_note + "\n";
  if (!imported.no_model_note.empty()) text += "# Model: " + imported.no_model_note + "\n";
  for (const ImportedKnob& knob : imported.knobs) {
    const auto found = trainer::knobs().find(knob.key);
    const bool bare =
        found && (*found)->field.type != KnobType::kString && (parse_double(knob.value) || parse_bool(knob.value));
    text += fmt::format("{} = {}\n", knob.key, bare ? knob.value : json_quote(knob.value));
  }
  return text + "\n[[cell]]\nname = \"imported\"\n";
}

}  // namespace mbb::suites
