// Knobs of [fusion]: which pairs of ops become one.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> fusion_knobs() {
  return {
      {.key = "fusion.residual_fusion",
       .field = field(&Config::fusion, &FusionConfig::residual_fusion),
       .doc = "Residual sums move into the GEMM before them, and in the backward into the norm's gradient."},
      {.key = "fusion.cross_entropy_loss_fusion",
       .field = field(&Config::fusion, &FusionConfig::cross_entropy_loss_fusion),
       .doc = "Loss sums and the gradient of the logits in one op, in place; needs the whole vocabulary on a rank. "
              "Megatron-Core: off."},
  };
}

}  // namespace mbb::trainer
