// A knob of one recipe beside another recipe is an error, not a knob without effect.
#include "trainer/run/precision_rules.h"

#include <fmt/core.h>

#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// The knob differs from its default, which only `readers` read: values of knob `other`.
Status only_with(const Config& config, const char* key, const char* readers, const char* other = "precision.recipe") {
  MB_ASSIGN(const Knob* const knob, knobs().find(key));
  MB_ASSIGN(const Knob* const beside, knobs().find(other));
  const std::string value = knob_text(knob->get(&config)), usual = knobs().default_text(*knob);
  if (value == usual) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} = {} has no effect with {} = {}", key, value, other, knob_text(beside->get(&config))),
              fmt::format("it belongs to {}; leave it at {} otherwise", readers, usual));
}

// Beside FP8 weights stands an fp32 master alone: what the optimizer quantizes is never a bf16 weight in memory.
Status check_fp8_masters(const Config& config) {
  if (!config.precision.fp8_param || config.optimizer.main_params_dtype == StateType::kFp32) return {};
  constexpr const char* kMasters = "optimizer.main_params_dtype";
  MB_ASSIGN(const Knob* const masters, knobs().find(kMasters));
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} = {} needs bf16 weights, and precision.fp8_param = true keeps them in FP8", kMasters,
                          knob_text(masters->get(&config))),
              fmt::format("leave {} at fp32, or set precision.fp8_param = false", kMasters));
}

Status check_states(const Config& config) {
  constexpr const char* kAware = "optimizer.use_precision_aware_optimizer";
  if (!config.optimizer.use_precision_aware_optimizer) {
    for (const char* key : {"optimizer.main_params_dtype", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"})
      MB_TRY(only_with(config, key, "the precision-aware optimizer", kAware));
    return {};
  }
  if (config.precision.recipe != Recipe::kFp32) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} = true needs bf16 weights, and precision.recipe = fp32", kAware),
              "set precision.recipe = bf16 or a recipe of fewer bits");
}

}  // namespace

std::string recipe_name(const Config& config) {
  const auto knob = knobs().find("precision.recipe");
  MB_CHECK(knob.has_value(), "no knob precision.recipe");
  return knob_text((*knob)->get(&config));
}

bool runs_natively(Recipe recipe, int compute_major, int compute_minor) {
  switch (recipe) {
    case Recipe::kFp32: return true;
    case Recipe::kBf16: return compute_major >= 8;
    case Recipe::kFp8Delayed:
    case Recipe::kFp8Current: return compute_major >= 9 || (compute_major == 8 && compute_minor == 9);
    case Recipe::kFp8Blockwise: return compute_major == 9;  // later tensor cores scale by blocks of 32
    case Recipe::kMxfp8:
    case Recipe::kNvfp4: return compute_major >= 10;
  }
  return false;
}

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
  if (p.recipe != Recipe::kFp8Delayed && p.recipe != Recipe::kFp8Current)
    MB_TRY(only_with(config, "precision.fp8_param", "fp8_delayed and fp8_current"));
  MB_TRY(check_states(config));
  return check_fp8_masters(config);
}

}  // namespace mbb::trainer
