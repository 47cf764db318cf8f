// Every family as a model small enough to train in a test: named models with sizes overridden, as a user would.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include "profiler/base/check.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

struct Small {
  const char* name;
  void (*shape)(Config&);
};

inline void PrintTo(const Small& small, std::ostream* out) {
  *out << small.name;
}

inline void sizes(Config& c, const char* model, int64_t kv_heads) {
  c.model.name = model;
  c.model.num_layers = 2;
  c.model.hidden_size = 32;
  c.model.ffn_hidden_size = 48;
  c.model.num_attention_heads = 4;
  c.model.num_query_groups = kv_heads;
  c.model.vocab_size = 64;
  c.model.make_vocab_size_divisible_by = 1;
}

inline void experts(Config& c, int64_t count, int64_t top_k) {
  c.model.num_experts = count;
  c.model.moe_router_topk = top_k;
  c.model.moe_ffn_hidden_size = 24;
}

inline void deepseek(Config& c) {
  sizes(c, "deepseek-v3", 0);
  experts(c, 8, 3);
  c.model.moe_shared_expert_intermediate_size = 24;
  c.model.moe_router_num_groups = 4;
  c.model.moe_router_group_topk = 2;
  c.model.moe_first_dense_layers = 1;
  c.model.q_lora_rank = 12;
  c.model.kv_lora_rank = 8;
  c.model.qk_head_dim = 8;
  c.model.qk_pos_emb_head_dim = 4;
  c.model.v_head_dim = 6;
}

// DeepSeek-V3's sides that 128 does not divide: keys of 64 rotated elements beside a latent, heads of 192, and experts
// whose stacked weights 128 does not divide either. Every one is a multiple of 16.
inline void deepseek_sixteens(Config& c) {
  deepseek(c);
  c.model.hidden_size = 144;
  c.model.ffn_hidden_size = 272;
  c.model.num_attention_heads = 2;
  experts(c, 4, 2);
  c.model.moe_router_num_groups = 2;
  c.model.moe_router_group_topk = 1;
  c.model.moe_ffn_hidden_size = c.model.moe_shared_expert_intermediate_size = 208;
  c.model.q_lora_rank = 96;
  c.model.kv_lora_rank = 160;
  c.model.qk_head_dim = c.model.v_head_dim = 128;
  c.model.qk_pos_emb_head_dim = 64;
}

// Rows of FP8 matrices in sixteens, as the tensor cores take them.
inline void in_sixteens(Config& c, int64_t latent = 16) {
  c.model.hidden_size = 64;
  c.model.ffn_hidden_size = 96;
  if (c.model.moe_ffn_hidden_size > 0) c.model.moe_ffn_hidden_size = 32;
  if (c.model.moe_shared_expert_intermediate_size > 0) c.model.moe_shared_expert_intermediate_size = 32;
  if (c.model.q_lora_rank > 0)
    for (int64_t* size : {&c.model.q_lora_rank, &c.model.kv_lora_rank, &c.model.qk_head_dim,
                          &c.model.qk_pos_emb_head_dim, &c.model.v_head_dim})
      *size = latent;
  if (c.train.encoder_seq_length > 0) c.train.encoder_seq_length = 16;
}

// Whole blocks of 32, as MXFP8 has them: also of all experts' rows together, of which a capacity keeps half.
inline void in_thirty_twos(Config& c) {
  in_sixteens(c, 32);
  if (c.parallel.moe_expert_capacity_factor > 0) c.parallel.moe_expert_capacity_factor = 0.5;
}

inline Config config_of(const Small& small) {
  Config c;
  c.train.seq_length = 16;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 4;
  c.train.train_iters = 3;
  c.optimizer.lr_warmup_iters = 1;
  small.shape(c);
  return c;
}

inline const Small kFamilies[] = {
    {"gpt", [](Config& c) { sizes(c, "gpt3-126m", 0); }},
    {"gpt_untied", [](Config& c) { sizes(c, "gpt-462b", 0); }},
    {"llama31",
     [](Config& c) {
       sizes(c, "llama3.1-8b", 2);
       c.model.kv_channels = 8;
     }},
    {"nemotron",
     [](Config& c) {
       sizes(c, "nemotron4-15b", 2);
       c.model.kv_channels = 8;
     }},
    {"qwen25", [](Config& c) { sizes(c, "qwen2.5-7b", 2); }},
    {"qwen25_tied", [](Config& c) { sizes(c, "qwen2.5-0.5b", 2); }},
    {"qwen3",
     [](Config& c) {
       sizes(c, "qwen3-8b", 2);
       c.model.kv_channels = 16;
     }},
    {"mixtral",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
     }},
    {"mixtral_capacity",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
       c.parallel.moe_expert_capacity_factor = 0.75;
       c.model.moe_z_loss_coeff = 0.01;
     }},
    {"mixtral_balanced",
     [](Config& c) {
       sizes(c, "mixtral-8x7b", 2);
       experts(c, 4, 2);
       c.parallel.moe_router_force_load_balancing = true;
     }},
    {"qwen3_moe",
     [](Config& c) {
       sizes(c, "qwen3-30b-a3b", 2);
       experts(c, 6, 3);
       c.model.kv_channels = 16;
     }},
    {"gpt_oss",
     [](Config& c) {
       sizes(c, "gpt-oss-20b", 2);
       experts(c, 4, 2);
       c.model.kv_channels = 8;
       c.model.window_size = 5;
     }},
    {"deepseek_v3", deepseek},
    {"deepseek_v3_mtp",
     [](Config& c) {
       deepseek(c);
       c.model.mtp_num_layers = 2;
     }},
    {"t5",
     [](Config& c) {
       sizes(c, "t5-220m", 0);
       c.model.kv_channels = 8;
       c.model.encoder_num_layers = 2;
       c.train.encoder_seq_length = 12;
       c.train.hidden_dropout = 0.1;
     }},
    {"gpt_dropout",
     [](Config& c) {
       sizes(c, "gpt-462b", 0);
       c.train.hidden_dropout = 0.1;
       c.train.attention_dropout = 0.1;
     }},
};

inline const Small& family_of(std::string_view name) {
  for (const Small& family : kFamilies)
    if (family.name == name) return family;
  MB_CHECK(false, "no small family is called " + std::string(name));
}

}  // namespace mbb::trainer
