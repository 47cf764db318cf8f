// Which knobs of number formats go together.
#pragma once

#include <string>

#include "profiler/base/error.h"
#include "trainer/models/model.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// Whether the recipe quantizes the blocks' linear layers.
constexpr bool is_quantized(Recipe recipe) {
  return recipe != Recipe::kFp32 && recipe != Recipe::kBf16;
}

// "fp8_current".
std::string recipe_name(const Config& config);

// Whether a device of this compute capability has the recipe's products; what lacks them computes the same numbers in
// other formats, and its times say nothing (numerics-only).
bool runs_natively(Recipe recipe, int compute_major, int compute_minor);

// Errors (kBadArgument) name the knob that has no effect or no meaning beside another, and both values.
Status check_precision(const Config& config, const ModelShape& model);

}  // namespace mbb::trainer
