// What the two forms of a mixture of experts share: the router, and the experts' feed-forward over buffers of rows.
#pragma once

#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

struct Routing {
  TensorId experts, weights;  // [tokens, top_k]
};

// Routes the tokens x [.., h], with the losses that balance experts and the load that steers the next step. Padding
// goes to no expert (-1, weight 0) and counts nowhere: with N tokens that have a sequence, f_e the share of their N·k
// pairs that expert e got and P_e(t) a token's probability of it, the losses are Σ_t c·E·Σ_e f_e·P_e(t) and Σ_t
// c_z·log²Σexp(logits), over tokens of all micro-batches divided by all tokens, as the main loss is; f is of the
// micro-batch, or of the token's own sequence, of which a pack has several.
Routing route(BlockBuilder& k, const std::string& path, TensorId x);

// Rows of the buffer that these many tokens fill, and an expert's share of them where it has a capacity, which follows
// from all rows of the micro-batch; padding takes no place of it.
DispatchAttrs dispatch_attrs(const BlockBuilder& k, int64_t tokens);

// Which rows of a buffer each of this rank's experts owns.
struct ExpertRows {
  TensorId segments;
  int64_t useful;  // rows with tokens at balanced load
};

// Feed-forward of this rank's experts: a partial sum where experts are cut over expert tensor parallel ranks.
TensorId expert_feed_forward(BlockBuilder& k, const std::string& path, TensorId x, const ExpertRows& rows);

// y [.., h], the weighted sum of what each token's experts gave, sharded as `like`.
TensorId combine_rows(BlockBuilder& k, const std::string& path, TensorId done, TensorId rows, TensorId weights,
                      const DispatchAttrs& attrs, TensorId like);

// Tokens go to the ranks of their experts and come back: x as it is sharded, y likewise.
TensorId exchanged_experts(BlockBuilder& k, const std::string& path, TensorId x);

}  // namespace mbb::trainer
