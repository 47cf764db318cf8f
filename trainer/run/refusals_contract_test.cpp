// What is refused before anything runs names the knob and a remedy, and the remedy works.
#include <gtest/gtest.h>

#include <optional>

#include "profiler/base/text.h"
#include "trainer/run/settings_test.h"
#include "trainer/run/step_programs.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Settings kExperts{"model=mixtral-8x7b",
                        "layers=2",
                        "hidden_size=64",
                        "num_attention_heads=4",
                        "num_query_groups=2",
                        "num_experts=4",
                        "moe_ffn_hidden_size=64",
                        "moe_router_topk=2",
                        "vocab_size=64",
                        "seq_length=64",
                        "gbs=2",
                        "data.kind=synthetic"};

// Of resolving and building; nothing where both work.
std::optional<Error> refusal(const Settings& settings) {
  const auto layout = resolve(config_of(settings));
  if (!layout) return layout.error();
  const auto programs = build_programs(*layout);
  if (!programs) return programs.error();
  return std::nullopt;
}

void expect_refused(const Settings& settings, const std::string& what, const std::string& hint) {
  const auto error = refusal(settings);
  ASSERT_TRUE(error.has_value()) << join(settings, " ");
  EXPECT_NE(error->what.find(what), std::string::npos) << error->what;
  EXPECT_NE(error->hint.find(hint), std::string::npos) << error->what << "\n" << error->hint;
}

// The number behind "moe_expert_capacity_factor = ".
std::string advised_factor(const std::string& hint) {
  const std::string knob = "parallel.moe_expert_capacity_factor = ";
  const size_t at = hint.find(knob);
  if (at == std::string::npos) return "";
  const size_t first = at + knob.size();
  return hint.substr(first, hint.find_first_not_of("0123456789.", first) - first);
}

TEST(Refusals, MoreContextRanksThanArePlanned) {
  const Settings large{"layers=2", "seq_length=16777216", "mbs=1", "gbs=1", "data.kind=synthetic", "cp=65536"};
  expect_refused(large, "parallel.context_parallel_size = 65536 makes a program for each coordinate",
                 "lower parallel.context_parallel_size");
  // What rings are used for is far below.
  EXPECT_TRUE(resolve(config_of({"model=llama3-8b", "seq_length=1048576", "gbs=1", "mbs=1", "cp=128"})).has_value());
}

TEST(Refusals, BlocksOfExpertsWithACapacityNameTheFactorThatFits) {
  for (const char* recipe : {"fp8_blockwise", "mxfp8", "nvfp4"})
    for (const char* factor : {"0.7", "0.33", "1.1"})
      for (const Settings& mapping : {Settings{}, Settings{"ep=2", "etp=1"}}) {
        const Settings with = kExperts + mapping + Settings{std::string("recipe=") + recipe};
        const auto error = refusal(with + Settings{std::string("moe_expert_capacity_factor=") + factor});
        if (!error) continue;  // rows that happen to fit
        EXPECT_NE(error->what.find("precision.recipe"), std::string::npos) << error->what;
        EXPECT_EQ(error->hint.find("micro_batch_size"), std::string::npos) << "that does not help\n" << error->hint;
        const std::string fits = advised_factor(error->hint);
        ASSERT_FALSE(fits.empty()) << error->hint;
        const auto after = refusal(with + Settings{"moe_expert_capacity_factor=" + fits});
        EXPECT_FALSE(after.has_value()) << fits << ": " << (after ? after->what + "\n" + after->hint : "");
      }
  ASSERT_TRUE(refusal(kExperts + Settings{"recipe=mxfp8", "moe_expert_capacity_factor=0.7"}).has_value());
  // Widths stay widths.
  expect_refused(kExperts + Settings{"recipe=mxfp8", "moe_expert_capacity_factor=1", "moe_ffn_hidden_size=48"},
                 "does not divide into blocks of 32", "the model's widths");
}

TEST(Refusals, ModulesThatAModelOfExpertsHasNot) {
  for (const char* module : {"mlp", "act"})
    expect_refused(kExperts + Settings{"recompute_granularity=selective", std::string("recompute_modules=") + module},
                   std::string("memory.recompute_modules names ") + module, "memory.recompute_modules");
  EXPECT_FALSE(
      refusal(kExperts + Settings{"recompute_granularity=selective", "recompute_modules=moe_act"}).has_value());
}

TEST(Refusals, BatchesWhoseScheduleNobodyCanWalk) {
  expect_refused({"gbs=16777216"}, "train.global_batch_size = 16777216", "train.micro_batch_size");
  expect_refused({"gbs=524288", "pp=2", "layers=2"}, "2 chunks", "train.global_batch_size");
  EXPECT_TRUE(resolve(config_of({"gbs=16777216", "mbs=32"})).has_value()) << "half a million micro-batches";
}

TEST(Refusals, SequencesThatAreTooLongNameTheirKnobs) {
  const Settings settings{"sequences=lognormal", "length_sigma=2", "too_long=refuse", "seq_length=16"};
  const auto layout = resolve(config_of(settings));
  ASSERT_TRUE(layout.has_value());
  const auto rows = open_sequences(*layout);
  ASSERT_FALSE(rows.has_value());
  EXPECT_NE(rows.error().what.find("packing.too_long = refuse"), std::string::npos) << rows.error().what;
  EXPECT_NE(rows.error().what.find("train.seq_length allows 16"), std::string::npos) << rows.error().what;
  EXPECT_NE(rows.error().hint.find("packing.too_long = truncate or drop"), std::string::npos) << rows.error().hint;
}

}  // namespace
}  // namespace mbb::trainer
