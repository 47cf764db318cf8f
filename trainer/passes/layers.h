// Layers in the paths of ops and tensors.
#pragma once

#include <string_view>

namespace mbb::trainer {

// "layers.3." of "layers.3.attn.core.fwd"; also "encoder.layers.3." and "mtp.0.layer."; empty outside of layers.
std::string_view layer_of(std::string_view path);

}  // namespace mbb::trainer
