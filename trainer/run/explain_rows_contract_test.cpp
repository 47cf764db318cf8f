// Every knob of tuning that does something has a row in explain's summary, which says what; no row says nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "profiler/base/text.h"
#include "trainer/program/explain.h"
#include "trainer/run/choice_effects.h"
#include "trainer/run/knob_tries_test.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// Parameters of a pass or choice: the row is that knob's.
const std::map<std::string, std::string> kPartOf{
    {"memory.recompute_modules", "memory.recompute_granularity"},
    {"memory.cpu_offloading_num_layers", "memory.cpu_offloading"},
    {"memory.cpu_offloading_weights", "memory.cpu_offloading"},
    {"data_parallel.use_torch_fsdp2", "data_parallel.data_parallel_sharding_strategy"},
};

// What explain says elsewhere, or what is no part of the program.
const std::map<std::string, std::string> kElsewhere{
    {"parallel.gpus", "header"},
    {"parallel.tensor_model_parallel_size", "header"},
    {"parallel.context_parallel_size", "header"},
    {"parallel.pipeline_model_parallel_size", "header"},
    {"parallel.virtual_pipeline_model_parallel_size", "header"},
    {"parallel.expert_model_parallel_size", "header"},
    {"parallel.expert_tensor_parallel_size", "header"},
    {"parallel.encoder_pipeline_model_parallel_size", "header"},
    {"parallel.encoder_tensor_model_parallel_size", "header"},
    {"parallel.pipeline_layout", "layers of stages"},
    {"parallel.account_for_embedding_in_pipeline_split", "layers of stages"},
    {"parallel.account_for_loss_in_pipeline_split", "layers of stages"},
    {"parallel.microbatch_group_size_per_virtual_pipeline_stage", "bubble"},
    {"parallel.hierarchical_context_parallel_sizes", "header"},
    {"parallel.nvlink_domain_size", "a check"},
    {"parallel.moe_router_replay", "whose choices count, not what is computed"},
    {"memory.limit_gib", "a check"},
    {"packing.sequences", "what rows hold, not what is computed"},
    {"packing.mean_length", "what rows hold, not what is computed"},
    {"packing.length_sigma", "what rows hold, not what is computed"},
    {"packing.too_long", "what rows hold, not what is computed"},
    {"memory.nccl_nvls_enable", "environment of a launch"},
    {"memory.nccl_net_gdr_level", "environment of a launch"},
    {"memory.nccl_net_gdr_c2c", "environment of a launch"},
    {"memory.nccl_ub", "environment of a launch"},
    {"memory.nccl_cta_policy", "environment of a launch"},
    {"overlap.cuda_device_max_connections", "environment of a launch"},
};

bool is_tuning(const Knob& knob) {
  const auto section = knob.section();
  return section == "precision" || section == "parallel" || section == "memory" || section == "fusion" ||
         section == "packing" || section == "data_parallel" || section == "overlap" || knob.key == "debug.delay_us" ||
         knob.key == "optimizer.use_precision_aware_optimizer" || knob.key.ends_with("_dtype");
}

bool tells(const PassEffect& effect, const std::string& key) {
  if (effect.knob == key) return true;
  return std::any_of(choices().begin(), choices().end(), [&](const Choice& choice) {
    return choice.row == effect.pass && std::count(choice.knobs.begin(), choice.knobs.end(), key) > 0;
  });
}

struct Explained {
  Layout layout;
  StepPrograms programs;
};
Explained explained(const Settings& settings) {
  const auto layout = resolve(config_of(settings));
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  if (!layout) return {};
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  if (!programs) return {};
  add_choice_effects(*layout, *programs);
  return {*layout, std::move(*programs)};
}

class ExplainRows : public testing::TestWithParam<std::string> {};

TEST_P(ExplainRows, TellEveryKnobOfTuning) {
  const std::string key = GetParam();
  const Knob& knob = **knobs().find(key);
  const auto known = kTries.find(key);
  const Settings with = kBase + (known == kTries.end() ? Settings{} : known->second.with);
  const std::string value = known == kTries.end() ? another(knob, config_of(with)) : known->second.value;
  const Explained e = explained(with + Settings{key + "=" + value});
  const std::string told = kPartOf.contains(key) ? kPartOf.at(key) : key;
  bool found = false;
  for (const std::vector<PassEffect>& effects : e.programs.effects)
    for (const PassEffect& effect : effects) {
      found = found || tells(effect, told);
      EXPECT_FALSE(changes(effect).empty()) << effect.pass << " says nothing";
    }
  EXPECT_TRUE(found) << key << " = " << value << " has no row";
}

std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const Knob& knob : knobs().knobs())
    if (is_tuning(knob) && !kElsewhere.contains(knob.key)) all.push_back(knob.key);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ExplainRows, testing::ValuesIn(keys()),
                         [](const auto& test) { return replace_all(test.param, ".", "_"); });

// Lower precision that quantizes nothing is a builder's choice, and so is a pack; both with what needs them.
TEST(ExplainRows, TellOfBf16AndOfPacks) {
  const auto rows = [](const Settings& more) {
    std::vector<std::string> names;
    const Explained e = explained(kBase + more);
    for (const PassEffect& effect : e.programs.effects.at(0)) {
      names.push_back(effect.pass);
      if (effect.pass == "recipe") {
        EXPECT_LT(effect.after.bytes, effect.before.bytes);
        EXPECT_EQ(effect.after.flops, effect.before.flops);
      }
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(rows({"recipe=bf16"}), Names{"recipe"});
  EXPECT_EQ(rows({"recipe=bf16", "gpus=2", "grad_reduce_in_fp32=false"}), (Names{"recipe", "grad_reduce_in_fp32 off"}));
  EXPECT_EQ(rows({"recipe=fp8_current"}), Names{"precision"});
  EXPECT_EQ(rows({"sequences=uniform"}), Names{});
  EXPECT_EQ(rows({"sequences=uniform", "packed_sequence_size=64"}), Names{"packing"});
  EXPECT_EQ(rows({"sequences=uniform", "packed_sequence_size=64", "cp=2"}), (Names{"ring_attention", "packing"}));
}

TEST(ExplainRows, WhereNothingIsChosenNothingIsTold) {
  const Explained e = explained(kBase + Settings{"pp=2", "tp=2", "gpus=8"});
  for (const std::vector<PassEffect>& effects : e.programs.effects)
    for (const PassEffect& effect : effects) ADD_FAILURE() << effect.pass << ": " << join(changes(effect), ", ");
}

// residual_fusion in a stage of layers and in one without, cross entropy on the last stage alone.
TEST(ExplainRows, AreOfTheRankClassesThatChange) {
  const Explained e = explained(kBase + Settings{"pp=2", "cross_entropy_loss_fusion=true"});
  ASSERT_EQ(e.programs.effects.size(), 2U);
  EXPECT_TRUE(e.programs.effects[0].empty());
  ASSERT_EQ(e.programs.effects[1].size(), 1U);
  EXPECT_EQ(e.programs.effects[1][0].knob, "fusion.cross_entropy_loss_fusion");
  EXPECT_TRUE(e.programs.idle.empty());
  // What is shown first is stage 0.
  const auto text = to_text(explain(e.layout, e.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("  cross_entropy_loss_fusion  stage 1: "), std::string::npos) << *text;
}

// Collectives of sharded units are built on their streams, and full sharding asks for that itself.
TEST(ExplainRows, OverlapOfShardedUnitsIsToldAndNotCalledIdle) {
  const Explained full = explained(kBase + Settings{"gpus=2", "fsdp=true"});
  for (const IdleKnob& knob : full.programs.idle) ADD_FAILURE() << describe(knob);
  const Explained gradients =
      explained(kBase + Settings{"gpus=2", "sharding_strategy=optim_grads", "overlap_grad_reduce=true"});
  for (const IdleKnob& knob : gradients.programs.idle) ADD_FAILURE() << describe(knob);
  const std::vector<PassEffect>& effects = gradients.programs.effects.at(0);
  EXPECT_TRUE(std::any_of(effects.begin(), effects.end(),
                          [](const PassEffect& e) { return e.knob == "data_parallel.overlap_grad_reduce"; }));
}

// overlap_optimizer_with_forward brings overlap_param_gather with it where there is one.
TEST(ExplainRows, AKnobThatAnotherBringsIsNotCalledIdle) {
  const Explained alone = explained(kBase + Settings{"overlap_optimizer_with_forward=true"});
  for (const IdleKnob& knob : alone.layout.idle) ADD_FAILURE() << describe(knob);
  for (const IdleKnob& knob : alone.programs.idle) ADD_FAILURE() << describe(knob);
  EXPECT_FALSE(alone.layout.config.data_parallel.overlap_param_gather);
  const Explained both =
      explained(kBase + Settings{"overlap_optimizer_with_forward=true", "overlap_param_gather=true"});
  ASSERT_EQ(both.layout.idle.size(), 1U);
  EXPECT_EQ(describe(both.layout.idle[0]),
            "data_parallel.overlap_param_gather = true (needs several data-parallel GPUs)");
  EXPECT_TRUE(both.programs.idle.empty());
  EXPECT_EQ(program_hash(both.programs), program_hash(alone.programs));
  const Explained two = explained(kBase + Settings{"gpus=2", "overlap_optimizer_with_forward=true"});
  EXPECT_TRUE(two.layout.config.data_parallel.overlap_param_gather);
}

// The loss of each depth has logits of its own.
TEST(ExplainRows, FusedCrossEntropyNamesMultiTokenPrediction) {
  const Explained e = explained(kBase + Settings{"mtp_num_layers=1", "cross_entropy_loss_fusion=true"});
  ASSERT_EQ(e.layout.idle.size(), 1U);
  EXPECT_EQ(describe(e.layout.idle[0]), "fusion.cross_entropy_loss_fusion = true (needs mtp_num_layers = 0)");
  EXPECT_TRUE(e.programs.idle.empty());
}

// What the layout allows and no op meets: said, and without a row.
TEST(ExplainRows, APassThatFindsNothingIsSaidToDoNothing) {
  // All layers of such a stage share a bucket, which several segments write.
  const Explained e = explained(kBase + kSmallT5 + Settings{"pp=2", "gpus=4", "overlap_grad_reduce=true"});
  for (const std::vector<PassEffect>& effects : e.programs.effects) EXPECT_TRUE(effects.empty());
  ASSERT_EQ(e.programs.idle.size(), 1U);
  EXPECT_EQ(describe(e.programs.idle[0]), "data_parallel.overlap_grad_reduce = true (needs an op that it applies to)");
  const auto text = to_text(explain(e.layout, e.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("no effect here: data_parallel.overlap_grad_reduce = true"), std::string::npos) << *text;
}

}  // namespace
}  // namespace mbb::trainer
