// Token and position embedding.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

TensorId embed_tokens(BlockBuilder& k, const std::string& path, TensorId tokens) {
  const TensorId table = k.vocabulary_table("embedding.weight");
  const TensorId x =
      k.builder().emit1(kEmbedding, path + ".fwd", {tokens, table}, EmbeddingAttrs{}, {.out_path = path + ".out"});
  return k.scatter(path, x);
}

TensorId embedding_block(BlockBuilder& k) {
  const TensorId tokens =
      k.input(k.builder().program().ports.tokens, "tokens", Shape{k.layout().local_sequence(), k.layout().micro_batch});
  TensorId x = embed_tokens(k, "embedding", tokens);
  if (k.model().position == PositionKind::kLearned) {
    const TensorId table = k.weight("position_embedding.weight", Shape{k.model().max_positions, k.model().hidden_size},
                                    {.init = k.normal()});
    const PositionAttrs attrs{k.layout().sequence_parallel, false, k.layout().reads_starts(), k.positions()};
    std::vector<TensorId> in{x, table};
    if (attrs.packed) in.push_back(k.starts());
    x = k.builder().emit1(kPositionEmbedding, "position_embedding.fwd", in, attrs,
                          {.out_path = "position_embedding.out"});
  }
  return k.dropout("embedding", x);
}

}  // namespace mbb::trainer
