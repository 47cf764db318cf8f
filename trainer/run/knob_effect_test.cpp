// The list names knobs that exist, and every knob of the mixed sections is on the side it belongs to.
#include "trainer/run/knob_effect.h"

#include <gtest/gtest.h>

#include <set>

#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

std::set<std::string> with_effect(std::string_view section, KnobEffect effect) {
  std::set<std::string> keys;
  for (const Knob& knob : knobs().knobs())
    if (knob.section() == section && effect_of(knob.key) == effect) keys.insert(std::string(knob.bare_name()));
  return keys;
}

using Keys = std::set<std::string>;

TEST(KnobEffect, SectionsThatSayHowHoldFewKnobsThatSayMore) {
  EXPECT_EQ(with_effect("memory", KnobEffect::kWork), (Keys{"frozen", "lora_alpha", "lora_rank", "lora_targets"}));
  EXPECT_EQ(with_effect("parallel", KnobEffect::kWork),
            (Keys{"moe_expert_capacity_factor", "moe_router_force_load_balancing", "moe_router_replay",
                  "moe_token_drop_policy"}));
  for (const char* section : {"data_parallel", "overlap", "fusion", "host", "profiling", "debug"})
    EXPECT_EQ(with_effect(section, KnobEffect::kWork), Keys{}) << section;
}

TEST(KnobEffect, FormatsRound) {
  EXPECT_EQ(with_effect("precision", KnobEffect::kRounding).size(), 7U);
  EXPECT_EQ(with_effect("optimizer", KnobEffect::kRounding),
            (Keys{"exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype", "use_precision_aware_optimizer"}));
  EXPECT_EQ(with_effect("data_parallel", KnobEffect::kRounding), (Keys{"grad_reduce_in_fp32"}));
  EXPECT_EQ(with_effect("parallel", KnobEffect::kRounding), (Keys{"moe_fp8_dispatch"}));
}

TEST(KnobEffect, WhatIsTrainedIsWork) {
  for (const char* section : {"model", "data", "packing"}) {
    EXPECT_EQ(with_effect(section, KnobEffect::kHow), Keys{}) << section;
    EXPECT_EQ(with_effect(section, KnobEffect::kRounding), Keys{}) << section;
  }
  EXPECT_EQ(with_effect("train", KnobEffect::kHow), (Keys{"micro_batch_size"}));
  EXPECT_EQ(with_effect("optimizer", KnobEffect::kHow), Keys{});
}

}  // namespace
}  // namespace mbb::trainer
