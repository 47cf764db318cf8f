// Sections that say how a run is done, and the knobs in them that say more.
#include "trainer/run/knob_effect.h"

#include <algorithm>
#include <array>

namespace mbb::trainer {
namespace {

constexpr std::array<std::string_view, 8> kHowSections{"parallel.", "data_parallel.", "overlap.", "host.",
                                                       "debug.",    "profiling.",     "fusion.",  "memory."};

// Of those sections: weights that do not train, and the choice of experts.
constexpr std::array<std::string_view, 8> kWork{
    "memory.frozen",
    "memory.lora_rank",
    "memory.lora_alpha",
    "memory.lora_targets",
    "parallel.moe_expert_capacity_factor",
    "parallel.moe_token_drop_policy",
    "parallel.moe_router_force_load_balancing",
    "parallel.moe_router_replay",
};

constexpr std::array<std::string_view, 6> kRounding{
    "data_parallel.grad_reduce_in_fp32", "parallel.moe_fp8_dispatch", "optimizer.use_precision_aware_optimizer",
    "optimizer.main_params_dtype",       "optimizer.exp_avg_dtype",   "optimizer.exp_avg_sq_dtype",
};

// Of sections that say what is trained.
constexpr std::array<std::string_view, 1> kHow{"train.micro_batch_size"};

template <size_t kCount>
bool has(const std::array<std::string_view, kCount>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

KnobEffect effect_of(std::string_view key) {
  if (key.starts_with("precision.") || has(kRounding, key)) return KnobEffect::kRounding;
  if (has(kWork, key)) return KnobEffect::kWork;
  const bool how = has(kHow, key) || std::any_of(kHowSections.begin(), kHowSections.end(),
                                                 [&](std::string_view section) { return key.starts_with(section); });
  return how ? KnobEffect::kHow : KnobEffect::kWork;
}

}  // namespace mbb::trainer
