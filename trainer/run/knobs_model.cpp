// Knobs of [model]: which model, and shapes that override its own.
#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// 0 keeps what the model says, so that a proxy with fewer layers is one knob away from the whole model.
Knob shape(std::string name, std::vector<std::string> aliases, int64_t ModelConfig::*member, std::string doc,
           std::string unit = {}) {
  return {.key = "model." + name,
          .aliases = std::move(aliases),
          .field = field(&Config::model, member),
          .range = within(0, 1 << 24),
          .unit = std::move(unit),
          .doc = std::move(doc) + "; 0 = as the model has it."};
}

}  // namespace

std::vector<Knob> model_knobs() {
  return {
      {.key = "model.name",
       .aliases = {"model"},
       .field = field(&Config::model, &ModelConfig::name),
       .doc = "Model to train, by its name in `mbbench list models`."},
      shape("num_layers", {"layers"}, &ModelConfig::num_layers, "Transformer layers", "layers"),
      shape("hidden_size", {}, &ModelConfig::hidden_size, "Width of the residual stream"),
      shape("ffn_hidden_size", {}, &ModelConfig::ffn_hidden_size, "Inner width of the MLP"),
      shape("num_attention_heads", {"heads"}, &ModelConfig::num_attention_heads, "Query heads", "heads"),
      shape("num_query_groups", {"kv_heads"}, &ModelConfig::num_query_groups, "Key and value heads", "heads"),
      shape("kv_channels", {"head_dim"}, &ModelConfig::kv_channels, "Dimension of one head"),
      shape("vocab_size", {}, &ModelConfig::vocab_size, "Vocabulary before padding", "tokens"),
  };
}

}  // namespace mbb::trainer
