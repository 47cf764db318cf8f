// Feed-forward: up (and gate) projection, activation, down projection.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

TensorId mlp_block(BlockBuilder& k, const std::string& path, TensorId x, int64_t ffn) {
  const ModelShape& m = k.model();
  std::vector<int64_t> parts{ffn};
  if (m.gated()) parts.push_back(ffn);
  const TensorId up = k.column_linear(path + ".fc1", k.gather(path + ".fc1", x), parts, m.mlp_bias);
  return k.row_linear(path + ".fc2", k.activation(path + ".act", up), ffn, m.mlp_bias);
}

}  // namespace mbb::trainer
