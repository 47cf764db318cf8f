// Knobs of [precision]: the recipe.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> precision_knobs() {
  return {
      {.key = "precision.recipe",
       .field = field(&Config::precision, &PrecisionConfig::recipe),
       .choices =
           {choice("fp32", Recipe::kFp32, "everything in fp32, the reference"),
            choice("bf16", Recipe::kBf16, "bf16 compute with fp32 master weights and main gradients"),
            choice("fp8_current", Recipe::kFp8Current,
                   "as bf16, with the blocks' linear layers in tensorwise FP8, scaled by each tensor's present amax")},
       .doc = "Number formats of weights, activations and gradients."},
  };
}

}  // namespace mbb::trainer
