// A decoder layer.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

TensorId decoder_layer(BlockBuilder& k, const std::string& path, int64_t layer, TensorId x, TensorId memory) {
  const std::string attn = path + ".attn";
  const std::string mlp = path + ".mlp";
  x = k.residual(attn + ".residual", x,
                 attention_block(k, attn, k.norm(attn + ".norm", x), decoder_attention(k.layout(), layer)));
  if (memory != kNoTensor) {
    const std::string cross = path + ".cross";
    x = k.residual(cross + ".residual", x, cross_attention_block(k, cross, k.norm(cross + ".norm", x), memory));
  }
  const TensorId normed = k.norm(mlp + ".norm", x);
  const TensorId fed =
      k.model().is_moe_layer(layer) ? moe_block(k, mlp, normed) : mlp_block(k, mlp, normed, k.model().ffn_hidden_size);
  return k.residual(mlp + ".residual", x, fed);
}

}  // namespace mbb::trainer
