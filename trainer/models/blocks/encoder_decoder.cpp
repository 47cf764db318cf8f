// T5: an encoder whose tokens see each other both ways, and cross attention of every decoder layer to what it gives.
#include <fmt/core.h>

#include <algorithm>

#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

TensorId encoder_block(BlockBuilder& k) {
  const ModelShape& m = k.model();
  const Layout& l = k.layout();
  k.set_encoder(true);
  const TensorId tokens = k.input(k.builder().program().ports.encoder_tokens, "encoder.tokens",
                                  Shape{l.local_encoder_sequence(), l.micro_batch});
  TensorId x = k.dropout("encoder.embedding", embed_tokens(k, "encoder.embedding", tokens));
  AttentionKind both_ways{.causal = false, .relative_bias = "encoder.relative_bias.weight", .encoder = true};
  for (int64_t i = 0; i < m.num_encoder_layers; ++i) {
    // As the decoder's layer of that number does, or its last.
    if (l.cp > 1) both_ways.comm = l.cp_comm[std::min(static_cast<size_t>(i), l.cp_comm.size() - 1)];
    const std::string attn = fmt::format("encoder.layers.{}.attn", i);
    const std::string mlp = fmt::format("encoder.layers.{}.mlp", i);
    x = k.residual(attn + ".residual", x, attention_block(k, attn, k.norm(attn + ".norm", x), both_ways));
    x = k.residual(mlp + ".residual", x, mlp_block(k, mlp, k.norm(mlp + ".norm", x), m.ffn_hidden_size));
  }
  x = k.dropout("encoder.final_norm", k.norm("encoder.final_norm", x));
  k.set_encoder(false);
  return x;
}

TensorId whole_memory(BlockBuilder& k, TensorId memory) {
  if (k.layout().tp == 1 || !k.layout().memory_is_sharded()) return k.gather("encoder.memory", memory);
  return k.builder().emit1(kAllGather, "encoder.memory.all_gather.fwd", {memory}, k.tp_comm(),
                           {.stream = Stream::kTp, .category = Category::kComm});
}

TensorId cross_attention_block(BlockBuilder& k, const std::string& path, TensorId x, TensorId memory) {
  const ModelShape& m = k.model();
  const int64_t kv = m.kv_size();
  AttentionAttrs attrs{static_cast<int>(m.num_attention_heads / k.layout().tp),
                       static_cast<int>(m.num_query_groups / k.layout().tp), static_cast<int>(m.head_dim), false,
                       static_cast<float>(m.softmax_scale())};
  const TensorId q = k.column_linear(path + ".q", k.gather(path + ".q", x), {m.query_size()}, m.qkv_bias);
  std::vector<TensorId> in{q, k.column_linear(path + ".kv", memory, {kv, kv}, m.qkv_bias)};
  // Queries keep their rank and see the keys of all, whatever way self-attention takes: every pair is looked at.
  if (const Layout& l = k.layout(); l.cp > 1) {
    in[1] = k.builder().emit1(kAllGather, path + ".kv.cp_all_gather.fwd", {in[1]},
                              CommAttrs{.group = GroupKind::kCp, .group_size = l.cp},
                              {.stream = Stream::kCp, .category = Category::kComm});
    attrs.queries = k.positions();
    attrs.keys = gathered_positions(l.encoder_sequence, l.cp);
  }
  attrs.dropout = k.layout().config.train.attention_dropout;
  if (attrs.dropout > 0) {
    attrs.dropout_stream = k.random_stream(path + ".core.dropout");
    in.push_back(k.samples());
    in.push_back(k.builder().program().ports.step_record);
  }
  attrs.packed = k.layout().reads_starts();
  if (attrs.packed) in.insert(in.end(), {k.starts(), k.encoder_starts()});
  const TensorId context =
      k.builder().emit(kCrossAttention, path + ".core.fwd", in, attrs, {.out_path = path + ".core.out"})[0];
  return k.row_linear(path + ".proj", context, m.query_size(), m.attention_out_bias);
}

}  // namespace mbb::trainer
