// A decoder layer.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

TensorId decoder_layer(BlockBuilder& k, const std::string& path, int64_t layer, TensorId x) {
  const std::string attn = path + ".attn";
  const std::string mlp = path + ".mlp";
  x = k.residual(attn + ".residual", x,
                 attention_block(k, attn, k.norm(attn + ".norm", x), decoder_attention(k.model(), layer)));
  return k.residual(mlp + ".residual", x, mlp_block(k, mlp, k.norm(mlp + ".norm", x), k.model().ffn_hidden_size));
}

}  // namespace mbb::trainer
