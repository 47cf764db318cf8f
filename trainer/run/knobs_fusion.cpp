// Knobs of [fusion]: which pairs of ops become one.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> fusion_knobs() {
  return {
      {.key = "fusion.residual_fusion",
       .field = field(&Config::fusion, &FusionConfig::residual_fusion),
       .doc = "Residual sums move into the GEMM before them, and in the backward into the norm's gradient.",
       .needs = {needs::kBareSums}},
      {.key = "fusion.cross_entropy_loss_fusion",
       .field = field(&Config::fusion, &FusionConfig::cross_entropy_loss_fusion),
       .doc = "Loss sums and the gradient of the logits in one op, in place: the whole vocabulary is on a GPU then.",
       .history = "Megatron-Core: off.",
       .needs = {needs::kWholeVocabulary, needs::kOneLoss}},
      {.key = "fusion.swiglu_fusion",
       .field = field(&Config::fusion, &FusionConfig::swiglu_fusion),
       .doc = "SwiGLU of dense MLPs moves into the GEMM before it, and its gradient into the GEMM that gives it. On a "
              "GPU one kernel or both in turn, whichever is faster for the shape; over several ranks as "
              "host.gemm_tuning_file says, else in turn."},
      {.key = "fusion.masked_softmax_fusion",
       .field = field(&Config::fusion, &FusionConfig::masked_softmax_fusion),
       .doc = "Scale, mask and softmax of unfused attention in one op."},
      {.key = "fusion.gradient_accumulation_fusion",
       .field = field(&Config::fusion, &FusionConfig::gradient_accumulation_fusion),
       .doc =
           "Weight-gradient GEMMs add to the fp32 main gradient themselves; off: a product of its own in the compute "
           "type, then a sum."},
      {.key = "fusion.bias_activation_fusion",
       .field = field(&Config::fusion, &FusionConfig::bias_activation_fusion),
       .doc = "The bias of a dense MLP's first layer moves into its activation.",
       .history = "Megatron-Core: on."},
      {.key = "fusion.bias_dropout_fusion",
       .field = field(&Config::fusion, &FusionConfig::bias_dropout_fusion),
       .doc = "Bias, dropout and residual sum in one op.",
       .history = "Megatron-Core: on."},
      {.key = "fusion.apply_rope_fusion",
       .field = field(&Config::fusion, &FusionConfig::apply_rope_fusion),
       .doc = "Queries and keys turn in one op, of latent attention in the one that packs them; off: in one each.",
       .history = "Megatron-Core: off."},
      {.key = "fusion.attention_backend",
       .field = field(&Config::fusion, &FusionConfig::attention_backend),
       .choices = {choice("auto", AttentionBackend::kAuto,
                          "on a GPU the faster of fused and flash, timed for each shape before the first step"),
                   choice("flash", AttentionBackend::kFlash, "the project's own flash kernel"),
                   choice("fused", AttentionBackend::kFused, "cuDNN, else flash"),
                   choice("unfused", AttentionBackend::kUnfused,
                          "scores, softmax and context as ops of their own, whose matrices exist")},
       .doc =
           "What computes the attention core. Forms that neither fused nor flash knows (relative bias, dropout, fp32) "
           "take a general kernel. Why a choice was made or refused is kept with the launch."},
  };
}

}  // namespace mbb::trainer
