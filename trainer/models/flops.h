// Model FLOPs and parameter counts of a shape, in closed form (NUMERICS, section 2).
//
// Counted: 2 · multiply-adds of the matrix products of forward, dgrad and wgrad. Never counted: recompute, norms, RoPE,
// softmax, router, optimizer. Two conventions are always stored and printed by name: `causal` halves the attention core
// of causal self-attention; `full` counts every pair. A sliding layer counts the pairs inside its window, and encoder
// and cross attention count every pair, in both conventions.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/models/model.h"

namespace mbb::trainer {

enum class FlopsConvention { kCausal, kFull };
const char* name(FlopsConvention convention);  // "causal", "full"

// Stored with every run; a changed formula gets a new version, and old rows are recomputed, never rewritten.
inline constexpr const char* kFlopsFormulaId = "mbb-model-flops";
inline constexpr int kFlopsFormulaVersion = 1;

// `count` sequences of `length` tokens. An encoder-decoder's sequence has `length` decoder and `encoder_length` encoder
// tokens. In a packed micro-batch each packed document is a sequence of its own: attention never crosses documents.
struct SequenceGroup {
  std::int64_t length = 0;
  std::int64_t count = 1;
  std::int64_t encoder_length = 0;
};

// What one step (or any part of one) trains on.
struct BatchLengths {
  std::vector<SequenceGroup> groups;

  static BatchLengths uniform(std::int64_t seq_length, std::int64_t num_sequences = 1,
                              std::int64_t encoder_length = 0) {
    return {{{seq_length, num_sequences, encoder_length}}};
  }
  static BatchLengths packed(const std::vector<std::int64_t>& document_lengths);

  double tokens() const;          // T: decoder tokens
  double encoder_tokens() const;  // T_e
  double s2() const;              // S2 = Σ length²
  double encoder_s2() const;
  double cross_pairs() const;                           // Σ length · encoder_length
  double window_pairs(std::int64_t window_size) const;  // Σ pairs a causal window of that size shows
};

// FLOPs by part; they add up to total().
struct ModelFlops {
  double attention_linear = 0;  // QKV and output projections; MLA's low-rank ones; T5's of all three attentions
  double attention_core = 0;    // QKᵀ and PV
  double mlp = 0;               // dense feed-forward
  double moe = 0;               // routed and shared experts of the kept tokens
  double mtp = 0;               // the layers and projections of multi-token prediction; its logits are in `logits`
  double logits = 0;

  double total() const { return attention_linear + attention_core + mlp + moe + mtp + logits; }
};

// Forward + backward of the batch.
ModelFlops model_flops(const ModelShape& shape, const BatchLengths& batch, FlopsConvention convention);

// Per decoder token at a uniform length. Encoder-decoders take the encoder's length too.
double flops_per_token(const ModelShape& shape, std::int64_t seq_length, FlopsConvention convention,
                       std::int64_t encoder_length = 0);

// Trained parameters by part; they add up to total(). A router's selection bias is state, not a parameter.
struct ParameterCount {
  std::int64_t embedding = 0;  // word and learned position tables, relative bias tables
  std::int64_t attention = 0;  // with biases, sinks, QK norms and MLA's latent norms
  std::int64_t mlp = 0;        // dense layers
  std::int64_t router = 0;
  std::int64_t experts = 0;  // routed
  std::int64_t shared_experts = 0;
  std::int64_t norms = 0;    // before attention, before the feed-forward, final
  std::int64_t lm_head = 0;  // 0 when tied
  std::int64_t mtp = 0;      // everything the MTP layers add
  std::int64_t active = 0;   // what one token passes through: experts · top_k / num_experts, the rest whole

  std::int64_t total() const {
    return embedding + attention + mlp + router + experts + shared_experts + norms + lm_head + mtp;
  }
};

ParameterCount count_parameters(const ModelShape& shape);

}  // namespace mbb::trainer
