// Multi-token prediction (DeepSeek-V3): each depth joins the hidden state of the depth before (the main model's last
// layer, before its final norm) with the embedding of the token one further on, runs one more layer and predicts the
// token after that. Embedding and LM head are the main model's.
#include <fmt/core.h>

#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

void mtp_block(BlockBuilder& k, TensorId hidden) {
  Builder& b = k.builder();
  const ModelShape& m = k.model();
  const TensorId labels = b.program().ports.labels;
  const double weight = m.mtp_loss_scale / static_cast<double>(m.num_mtp_layers);
  TensorId tokens = labels;
  const Layout& l = k.layout();
  // Tokens further on may lie on other ranks.
  TensorId all_labels = labels;
  ShiftAttrs shift{.rows = l.local_sequence(), .packed = l.packed(), .to = k.positions()};
  if (l.cp > 1) {
    shift.from = gathered_positions(l.sequence, l.cp);
    all_labels = b.emit1(kAllGather, "mtp.labels.all_gather.fwd", {labels},
                         CommAttrs{.group = GroupKind::kCp, .group_size = l.cp},
                         {.stream = Stream::kCp, .category = Category::kComm});
  }
  std::vector<TensorId> shifted{all_labels};
  if (shift.packed) shifted.push_back(k.starts());
  for (int depth = 0; depth < m.num_mtp_layers; ++depth) {
    const std::string path = fmt::format("mtp.{}", depth);
    const TensorId embedded = k.norm(path + ".embedding_norm", embed_tokens(k, path + ".embedding", tokens));
    const TensorId joined =
        b.emit1(kAdd, path + ".proj.add.fwd",
                {k.replicated_linear(path + ".proj_embedding", embedded, m.hidden_size),
                 k.replicated_linear(path + ".proj_hidden", k.norm(path + ".hidden_norm", hidden), m.hidden_size)},
                NoAttrs{}, {.out_path = path + ".proj.out"});
    hidden = decoder_layer(k, path + ".layer", m.num_layers, joined);
    shift.by = depth + 1;
    const TensorId target = b.emit1(kShiftTokens, path + ".labels.fwd", shifted, shift, {.out_path = path + ".labels"});
    const TensorId total = k.step_sum(path + ".loss_sum", DType::kF64, Shape{2});
    b.program().ports.mtp_losses.push_back(total);
    loss_block(k, path + ".", k.norm(path + ".final_norm", hidden), target, total, weight);
    tokens = target;
  }
}

}  // namespace mbb::trainer
