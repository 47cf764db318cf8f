// Knobs of [model]: which model, and shapes that override its own.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

Knob needing(const char* need, Knob knob) {
  knob.needs = {need};
  return knob;
}

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

Knob from_minus_one(std::string name, int64_t ModelConfig::*member, std::string doc) {
  return {.key = "model." + name,
          .field = field(&Config::model, member),
          .range = within(-1, 1 << 24),
          .doc = std::move(doc) + "; -1 = as the model has it."};
}

}  // namespace

std::vector<Knob> model_knobs() {
  return {
      {.key = "model.name",
       .aliases = {"model"},
       .field = field(&Config::model, &ModelConfig::name),
       .doc = "Model to train: a name in `mbbench list models`, or the path of a Hugging Face config.json."},
      shape("num_layers", {"layers"}, &ModelConfig::num_layers, "Transformer layers", "layers"),
      shape("hidden_size", {}, &ModelConfig::hidden_size, "Width of the residual stream"),
      needing(needs::kDenseMlp,
              shape("ffn_hidden_size", {}, &ModelConfig::ffn_hidden_size, "Inner width of the dense MLP")),
      shape("num_attention_heads", {"heads"}, &ModelConfig::num_attention_heads, "Query heads", "heads"),
      shape("num_query_groups", {"kv_heads"}, &ModelConfig::num_query_groups, "Key and value heads", "heads"),
      shape("kv_channels", {"head_dim"}, &ModelConfig::kv_channels, "Dimension of one head"),
      shape("vocab_size", {}, &ModelConfig::vocab_size, "Vocabulary before padding", "tokens"),
      {.key = "model.make_vocab_size_divisible_by",
       .field = field(&Config::model, &ModelConfig::make_vocab_size_divisible_by),
       .range = within(1, 1 << 24),
       .unit = "tokens",
       .doc = "The tables of embedding and LM head are padded to a multiple of this times tensor_model_parallel_size; "
              "padding never wins, gets no loss and no gradient. 1 = only as far as tensor parallelism needs."},
      needing(needs::kLearnedPositions, shape("max_position_embeddings", {}, &ModelConfig::max_position_embeddings,
                                              "Learned positions", "tokens")),
      shape("window_size", {}, &ModelConfig::window_size, "Sliding window of the layers that have one", "tokens"),
      shape("num_experts", {}, &ModelConfig::num_experts, "Routed experts of an MoE layer", "experts"),
      shape("moe_router_topk", {}, &ModelConfig::moe_router_topk, "Experts a token goes to", "experts"),
      shape("moe_ffn_hidden_size", {}, &ModelConfig::moe_ffn_hidden_size, "Inner width of an expert"),
      shape("moe_shared_expert_intermediate_size", {}, &ModelConfig::moe_shared_expert_intermediate_size,
            "Inner width of all shared experts together"),
      shape("moe_router_num_groups", {}, &ModelConfig::moe_router_num_groups, "Groups experts are routed by"),
      shape("moe_router_group_topk", {}, &ModelConfig::moe_router_group_topk, "Groups a token may choose from"),
      from_minus_one("moe_first_dense_layers", &ModelConfig::moe_first_dense_layers,
                     "Leading layers with a dense MLP in an MoE model"),
      from_minus_one("q_lora_rank", &ModelConfig::q_lora_rank,
                     "Width of the query latent of MLA; 0 = queries straight from the hidden state"),
      shape("kv_lora_rank", {}, &ModelConfig::kv_lora_rank, "Width of the key-value latent of MLA"),
      shape("qk_head_dim", {}, &ModelConfig::qk_head_dim, "Part of an MLA head without positions"),
      shape("qk_pos_emb_head_dim", {}, &ModelConfig::qk_pos_emb_head_dim, "Part of an MLA head that RoPE turns"),
      shape("v_head_dim", {}, &ModelConfig::v_head_dim, "Value dimension of an MLA head"),
      from_minus_one("mtp_num_layers", &ModelConfig::mtp_num_layers, "Multi-token-prediction layers"),
      {.key = "model.moe_aux_loss_coeff",
       .field = field(&Config::model, &ModelConfig::moe_aux_loss_coeff),
       .range = at_least(-1),
       .doc =
           "Weight of the loss that balances the experts' load in a micro-batch, or in each of its sequences; padding "
           "has no part in it. -1 = as the model has it.",
       .history = "Megatron-Core: 0.",
       .needs = {needs::kExperts}},
      {.key = "model.moe_z_loss_coeff",
       .field = field(&Config::model, &ModelConfig::moe_z_loss_coeff),
       .range = at_least(-1),
       .doc = "Weight of the loss that keeps router logits small; -1 = as the model has it.",
       .history = "Megatron-Core: none.",
       .needs = {needs::kExperts}},
      shape("encoder_num_layers", {}, &ModelConfig::encoder_num_layers, "Encoder layers", "layers"),
  };
}

}  // namespace mbb::trainer
