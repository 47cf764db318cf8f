// Ops of all layers under one name.
#pragma once

#include <string>
#include <string_view>

namespace mbb::analysis {

// "layers.3.mlp.fc1.fwd" -> "layers.*.mlp.fc1.fwd"
std::string grouped_path(std::string_view path);

}  // namespace mbb::analysis
