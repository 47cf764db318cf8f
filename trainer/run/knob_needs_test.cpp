// Every need is a knob's and holds somewhere and somewhere not; a knob whose need does not hold is refused, or said to
// do nothing and does nothing.
#include "trainer/run/knob_needs.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "profiler/base/text.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"
#include "trainer/run/settings_test.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

const Settings kDense{"layers=2", "seq_length=16", "gbs=4"};
const Settings kMoe{"model=mixtral-8x7b",     "layers=2",
                    "seq_length=16",          "gbs=4",
                    "hidden_size=32",         "num_attention_heads=4",
                    "num_query_groups=2",     "vocab_size=64",
                    "num_experts=4",          "moe_router_topk=2",
                    "moe_ffn_hidden_size=24", "etp=1",
                    "data.kind=synthetic"};
const Settings kSmallGpt{"model=gpt-462b",     "layers=2",           "seq_length=16",         "gbs=4",
                         "hidden_size=32",     "ffn_hidden_size=48", "num_attention_heads=4", "vocab_size=256",
                         "data.kind=synthetic"};
const Settings kSmallT5{"model=t5-220m",      "layers=2",
                        "seq_length=16",      "gbs=4",
                        "hidden_size=32",     "kv_channels=8",
                        "vocab_size=256",     "encoder_num_layers=2",
                        "ffn_hidden_size=48", "num_attention_heads=4",
                        "data.kind=synthetic"};

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A configuration in which a need holds, and one in which it does not while the needs named before it do.
struct Case {
  Settings holds, fails;
};
const std::map<std::string, Case> kCases{
    {needs::kExperts, {kMoe, kDense}},
    {needs::kEncoder, {kSmallT5, kDense}},
    {needs::kEp, {kMoe + Settings{"ep=2"}, kMoe}},
    {needs::kExchange, {kMoe + Settings{"tp=2"}, kMoe}},
    {needs::kCapacity, {kMoe + Settings{"moe_expert_capacity_factor=1"}, kMoe}},
    {needs::kDropless, {kMoe + Settings{"ep=2"}, kMoe + Settings{"ep=2", "moe_expert_capacity_factor=1"}}},
    {needs::kPp, {kDense + Settings{"pp=2"}, kDense}},
    {needs::kMessages, {kSmallT5 + Settings{"encoder_pipeline_model_parallel_size=1"}, kDense}},
    {needs::kDataParallel, {kDense + Settings{"gpus=2"}, kDense}},
    {needs::kCp, {kDense + Settings{"cp=2"}, kDense}},
    {needs::kWholeVocabulary, {kDense, kDense + Settings{"tp=2"}}},
    {needs::kOneLoss, {kDense, kDense + Settings{"mtp_num_layers=1"}}},
    {needs::kDecay, {kDense, kDense + Settings{"lr_decay_style=constant"}}},
    {needs::kStepsAfterWarmup, {kDense, kDense + Settings{"train_iters=3"}}},
    {needs::kAmaxHistory,
     {kDense + Settings{"recipe=fp8_delayed"}, kDense + Settings{"recipe=fp8_delayed", "fp8_amax_history_len=1"}}},
    {needs::kGpu, {kDense + Settings{"host.device=cuda"}, kDense}},
    {needs::kLearnedPositions, {kSmallGpt, kDense}},
    {needs::kDenseMlp, {kDense, kMoe}},
    {needs::kWholeGradients, {kDense + Settings{"gpus=2"}, kDense + Settings{"gpus=2", "fsdp=true"}}},
    {needs::kReduced, {kDense + Settings{"tp=2"}, kDense}},
    {needs::kBareSums, {kDense, kSmallGpt}},
};

// Of knobs whose next value is no good one, or is refused beside nothing else.
const std::map<std::string, Settings> kValues{
    {"parallel.cp_comm_type", {"cp_comm_type=a2a"}},
    {"parallel.moe_dropless_bound", {"moe_dropless_bound=1.25"}},
    {"parallel.moe_router_replay", {"moe_router_replay=record"}},
    {"parallel.use_distributed_optimizer", {"use_distributed_optimizer=false"}},
    {"data_parallel.data_parallel_sharding_strategy", {"sharding_strategy=optim_grads"}},
    {"data_parallel.reshard_after_forward", {"reshard_after_forward=false", "fsdp=true"}},
    {"data_parallel.fsdp_prefetch_units", {"fsdp_prefetch_units=2", "fsdp=true"}},
    {"data_parallel.align_param_gather", {"align_param_gather=true", "overlap_param_gather=true"}},
    {"data_parallel.overlap_param_gather_with_optimizer_step",
     {"overlap_param_gather_with_optimizer_step=true", "overlap_param_gather=true"}},
    {"optimizer.min_lr", {"min_lr=0.001"}},
    {"host.cuda_graph_scope", {"cuda_graph_scope=layer"}},
    {"host.gemm_tuning_file", {"gemm_tuning_file=choices.txt"}},
};

Settings another(const Knob& knob) {
  if (const auto known = kValues.find(knob.key); known != kValues.end()) return known->second;
  const Config defaults;
  const KnobData now = knob.get(&defaults);
  std::string value;
  if (const auto* flag = std::get_if<bool>(&now)) value = *flag ? "false" : "true";
  if (const auto* number = std::get_if<int64_t>(&now)) value = std::to_string(*number + 8);
  if (const auto* number = std::get_if<double>(&now)) value = format_exact(*number + 1.5);
  if (std::holds_alternative<KnobAuto>(now)) value = "true";
  for (const KnobChoice& choice : knob.choices)
    if (value.empty() && choice.name != knob_text(now)) value = choice.name;
  return {knob.key + "=" + value};
}

const Knob& knob_named(const std::string& key) {
  return **knobs().find(key);
}

std::string need_of(const Layout& layout, const std::string& key) {
  for (const IdleKnob& idle : layout.idle)
    if (idle.key == key) return idle.needs;
  return "";
}

TEST(KnobNeeds, EveryNeedIsAKnobsAndEveryKnobsIsInTheTable) {
  std::set<std::string> used, known;
  for (const Knob& knob : knobs().knobs()) used.insert(knob.needs.begin(), knob.needs.end());
  for (const KnobNeed& need : knob_needs()) EXPECT_TRUE(known.insert(need.words).second) << need.words;
  EXPECT_EQ(used, known);
}

TEST(KnobNeeds, EveryNeedHoldsSomewhereAndSomewhereNot) {
  for (const KnobNeed& need : knob_needs()) {
    ASSERT_TRUE(kCases.contains(need.words)) << need.words;
    const auto holds = resolve(config_of(kCases.at(need.words).holds));
    const auto fails = resolve(config_of(kCases.at(need.words).fails));
    ASSERT_TRUE(holds.has_value()) << need.words << ": " << format(holds.error());
    ASSERT_TRUE(fails.has_value()) << need.words << ": " << format(fails.error());
    EXPECT_TRUE(need.holds(*holds)) << need.words;
    EXPECT_FALSE(need.holds(*fails)) << need.words;
  }
}

struct Idle {
  std::string key, need;
};

class IdleKnobs : public testing::TestWithParam<Idle> {};

// It is refused by its name and its need; or it is listed, and programs, plans and what explain says of them are those
// without it.
TEST_P(IdleKnobs, AreRefusedOrSaidToDoNothingAndDoNothing) {
  const auto& [key, words] = GetParam();
  const Settings given = another(knob_named(key));
  const Settings without = kCases.at(words).fails;
  const auto with = resolve(config_of(without + given));
  Unmet unmet = Unmet::kKept;
  for (const KnobNeed& need : knob_needs())
    if (words == need.words) unmet = need.unmet;
  if (unmet == Unmet::kRefused && !with.has_value()) {
    EXPECT_NE(with.error().what.find(key), std::string::npos) << with.error().what;
    EXPECT_NE(with.error().what.find("needs " + words), std::string::npos) << with.error().what;
    EXPECT_FALSE(with.error().hint.empty());
    return;
  }
  ASSERT_TRUE(with.has_value()) << format(with.error());
  EXPECT_EQ(need_of(*with, key), words);
  EXPECT_TRUE(unmet != Unmet::kRefused || given[0].ends_with("=false")) << "only what asks for nothing is let pass";
  const auto plain = resolve(config_of(without));
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(need_of(*plain, key), "") << "nobody gave it";
  const auto programs = build_programs(*with), others = build_programs(*plain);
  ASSERT_TRUE(programs.has_value() && others.has_value());
  EXPECT_EQ(program_hash(*programs), program_hash(*others));
  ASSERT_EQ(programs->plans.size(), others->plans.size());
  for (size_t i = 0; i < programs->plans.size(); ++i)
    EXPECT_EQ(programs->plans[i].arena_bytes, others->plans[i].arena_bytes);
  const auto text = to_text(explain(*with, *programs)), usual = to_text(explain(*plain, *others));
  ASSERT_TRUE(text.has_value() && usual.has_value());
  const size_t note = text->find("no effect here: ");
  ASSERT_NE(note, std::string::npos) << *text;
  EXPECT_NE(text->find(key + " = ", note), std::string::npos) << *text;
  EXPECT_NE(text->find("(needs " + words + ")", note), std::string::npos) << *text;
  EXPECT_EQ(text->substr(0, note), usual->substr(0, usual->find("no effect here: ")));
  EXPECT_NE(explain_json(*with, *programs).find("\"" + key + " = "), std::string::npos);
}

std::vector<Idle> all_needs() {
  std::vector<Idle> all;
  for (const Knob& knob : knobs().knobs())
    for (const std::string& need : knob.needs) all.push_back({knob.key, need});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, IdleKnobs, testing::ValuesIn(all_needs()), [](const auto& test) {
  std::string name;
  for (const char c : test.param.key + " " + test.param.need)
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(KnobNeeds, NothingIsSaidWhereEveryKnobDoesSomething) {
  for (const Settings& settings :
       {Settings{}, kDense + Settings{"pp=2", "overlap_p2p_comm=true", "gpus=4", "overlap_grad_reduce=true"},
        kMoe + Settings{"ep=2", "moe_exchange=counts"}, kSmallT5 + Settings{"encoder_seq_length=8"}}) {
    const auto layout = resolve(config_of(settings));
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    for (const IdleKnob& idle : layout->idle) ADD_FAILURE() << describe(idle);
  }
}

TEST(KnobNeeds, ContradictionsAreRefusedWhereTheKnobsDoNothingToo) {
  const auto refused = resolve(config_of(kDense + Settings{"fsdp=true", "sharding_strategy=optim"}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find("use_torch_fsdp2"), std::string::npos) << refused.error().what;
}

}  // namespace
}  // namespace mbb::trainer
