// The blocks models are put together from, one file each. Every block reads the model's shape: a family is a shape, not
// code of its own.
#pragma once

#include "trainer/models/blocks/block_builder.h"

namespace mbb::trainer {

// Tokens [s, b] to hidden states: vocabulary-parallel embedding, scattered along the sequence, no positions.
TensorId embed_tokens(BlockBuilder& k, const std::string& path, TensorId tokens);
// The first stage's beginning: tokens, learned positions where the model has them, dropout.
TensorId embedding_block(BlockBuilder& k);

// Which tokens attention sees and where its position bias lies.
struct AttentionKind {
  bool causal = true;
  int64_t window = 0;
  std::string relative_bias;  // path of the table of relative positions; empty: none
  bool every_stage = false;   // layers of all stages read that table
  bool encoder = false;       // of the encoder's tokens
  CpComm comm = CpComm::kP2p;
};
AttentionKind decoder_attention(const Layout& layout, int64_t layer);

// The core of self-attention when context parallelism divides the sequence; operands as kAttention's.
TensorId context_attention(BlockBuilder& k, const std::string& path, std::vector<TensorId> in, AttentionAttrs attrs,
                           CpComm comm);

// Self-attention with its projections; input normed hidden states, output what is added to the residual.
TensorId attention_block(BlockBuilder& k, const std::string& path, TensorId x, const AttentionKind& kind);

// Feed-forward of width `ffn`.
TensorId mlp_block(BlockBuilder& k, const std::string& path, TensorId x, int64_t ffn);

// Routed experts, and the shared one where the model has it.
TensorId moe_block(BlockBuilder& k, const std::string& path, TensorId x);

// The encoder's stack; what it gives is sharded along its sequence as hidden states are.
TensorId encoder_block(BlockBuilder& k);
// That output, whole in its sequence, for cross attention.
TensorId whole_memory(BlockBuilder& k, TensorId memory);
TensorId cross_attention_block(BlockBuilder& k, const std::string& path, TensorId x, TensorId memory);

// LM head and summed token loss of normed hidden states into `total`, f64 [2]; paths begin with `prefix`. The loss's
// gradient is multiplied by `weight`.
void loss_block(BlockBuilder& k, const std::string& prefix, TensorId normed, TensorId labels, TensorId total,
                double weight = 1.0);
// The last stage's end: final norm, LM head, loss.
void head_block(BlockBuilder& k, TensorId x);

// One layer of the decoder: attention, cross attention where there is a memory, dense or expert feed-forward, each
// behind its norm and residual.
TensorId decoder_layer(BlockBuilder& k, const std::string& path, int64_t layer, TensorId x,
                       TensorId memory = kNoTensor);

// Layers and losses for tokens further on than the next; `hidden` is what the last layer gave.
void mtp_block(BlockBuilder& k, TensorId hidden);

}  // namespace mbb::trainer
