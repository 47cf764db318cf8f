// A knob of one recipe beside another recipe is an error, not a knob without effect.
#include "trainer/run/precision_rules.h"

#include <fmt/core.h>

#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// The knob differs from its default, which only `recipes` read.
Status only_with(const Config& config, const char* key, const char* recipes) {
  MB_ASSIGN(const Knob* const knob, knobs().find(key));
  MB_ASSIGN(const Knob* const recipe, knobs().find("precision.recipe"));
  const std::string value = knob_text(knob->get(&config)), usual = knobs().default_text(*knob);
  if (value == usual) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("{} = {} has no effect with precision.recipe = {}", key, value, knob_text(recipe->get(&config))),
      fmt::format("it belongs to {}; leave it at {} otherwise", recipes, usual));
}

}  // namespace

Status check_precision(const Config& config, const ModelShape& model) {
  const PrecisionConfig& p = config.precision;
  if (p.recipe != Recipe::kFp8Delayed)
    for (const char* key :
         {"precision.fp8_margin", "precision.fp8_amax_history_len", "precision.fp8_amax_compute_algo"})
      MB_TRY(only_with(config, key, "fp8_delayed"));
  if (p.recipe != Recipe::kFp8Blockwise)
    MB_TRY(only_with(config, "precision.fp8_power_of_two_scales", "fp8_blockwise"));
  if (!is_quantized(p.recipe)) MB_TRY(only_with(config, "precision.first_last_layers_bf16", "the FP8 and FP4 recipes"));
  if (2 * p.first_last_layers_bf16 >= model.num_layers && p.first_last_layers_bf16 > 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("precision.first_last_layers_bf16 = {} leaves none of {} layers to quantize",
                            p.first_last_layers_bf16, model.num_layers),
                "take fewer layers, or precision.recipe = bf16");
  return {};
}

}  // namespace mbb::trainer
