// Which colour a piece of work or of memory has, told from its names.
#pragma once

#include <string_view>

#include "viewer/theme/palette.h"

namespace mbb::viewer {

// Of an op by its kind ("gemm") and, where that says nothing, its path or kernel name.
Ink op_ink(std::string_view kind, std::string_view path);
// Of a memory category ("main grads").
Ink category_ink(std::string_view category);

}  // namespace mbb::viewer
