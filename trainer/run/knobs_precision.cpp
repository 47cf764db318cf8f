// Knobs of [precision]: the recipe.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> precision_knobs() {
  return {
      {.key = "precision.recipe",
       .field = field(&Config::precision, &PrecisionConfig::recipe),
       .choices =
           {choice("fp32", Recipe::kFp32, "everything in fp32, the reference"),
            choice("bf16", Recipe::kBf16, "bf16 compute with fp32 master weights and main gradients"),
            choice("fp8_delayed", Recipe::kFp8Delayed,
                   "as bf16, with the blocks' linear layers in tensorwise FP8, scaled by the amaxes of earlier steps"),
            choice("fp8_current", Recipe::kFp8Current, "as fp8_delayed, scaled by each tensor's present amax"),
            choice("fp8_blockwise", Recipe::kFp8Blockwise,
                   "their inputs and gradients in E4M3 with a scale per 1x128 block, weights per 128x128; sides are "
                   "multiples of 16, the last block may be partial"),
            choice("mxfp8", Recipe::kMxfp8, "E4M3 with a power-of-two scale per 1x32 block"),
            choice("nvfp4", Recipe::kNvfp4,
                   "E2M1 with an E4M3 scale per 1x16 block, weights 16x16; wgrad operands rotated, gradients rounded "
                   "stochastically"),
            choice("fp8_ds", Recipe::kFp8Delayed, "fp8_delayed"), choice("fp8_cs", Recipe::kFp8Current, "fp8_current"),
            choice("tensorwise", Recipe::kFp8Current, "fp8_current"),
            choice("fp8_sc", Recipe::kFp8Blockwise, "fp8_blockwise"), choice("fp8_mx", Recipe::kMxfp8, "mxfp8")},
       .doc = "Number formats of weights, activations and gradients."},
      {.key = "precision.first_last_layers_bf16",
       .field = field(&Config::precision, &PrecisionConfig::first_last_layers_bf16),
       .range = within(0, 1 << 16),
       .unit = "layers",
       .doc = "Layers at either end of each stack whose GEMMs stay in bf16.",
       .history = "Megatron-Core: off, one layer at either end when on."},
      {.key = "precision.fp8_margin",
       .field = field(&Config::precision, &PrecisionConfig::fp8_margin),
       .range = within(0, 32),
       .unit = "powers of two",
       .doc = "Headroom that fp8_delayed leaves below the format's maximum."},
      {.key = "precision.fp8_amax_history_len",
       .field = field(&Config::precision, &PrecisionConfig::fp8_amax_history_len),
       .range = within(1, 1 << 16),
       .unit = "steps",
       .doc = "Steps whose amaxes fp8_delayed remembers.",
       .history = "Megatron-Core: 1."},
      {.key = "precision.fp8_amax_compute_algo",
       .field = field(&Config::precision, &PrecisionConfig::fp8_amax_compute_algo),
       .choices = {choice("max", AmaxAlgorithm::kMax, "the largest of the history"),
                   choice("most_recent", AmaxAlgorithm::kMostRecent, "the last step's")},
       .doc = "Which amax fp8_delayed scales by.",
       .history = "Megatron-Core: most_recent.",
       .needs = {needs::kAmaxHistory}},
      {.key = "precision.fp8_power_of_two_scales",
       .field = field(&Config::precision, &PrecisionConfig::fp8_power_of_two_scales),
       .doc = "Scales of fp8_blockwise are rounded down to powers of two."},
      {.key = "precision.fp8_param",
       .aliases = {"fp8_param_gather"},
       .field = field(&Config::precision, &PrecisionConfig::fp8_param),
       .doc = "Parameters stay FP8 after the optimizer step, and data-parallel gathers move FP8; for fp8_delayed and "
              "fp8_current, whose losses do not change by a bit where moments are fp32: bf16 moments draw other random "
              "numbers, and fp16 and FP8 moments have scales of other shards. Needs fp32 masters. Frozen weights are "
              "FP8 from the start, with their own scale where others are delayed.",
       .history = "Megatron-Core: fp8_param_gather."},
  };
}

}  // namespace mbb::trainer
