// What candidates hold, and how sites are chosen from their times.
#include "suites/runner/overlap_tuner.h"

#include <gtest/gtest.h>

#include "profiler/base/text.h"
#include "suites/matrix/suite.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

using baselines::Verdict;

trainer::Config tp2() {
  trainer::Config config;
  config.parallel.gpus = config.parallel.tensor_model_parallel_size = 2;
  return config;
}

// Three launches around a time.
std::vector<double> around(double ns) {
  return {ns * 0.999, ns, ns * 1.001};
}

TEST(OverlapCandidates, EveryOneIsAConfigurationAndPutsItsMethodWhereItFits) {
  const auto all = overlap_candidates(tp2(), {8, 16});
  ASSERT_EQ(all.size(), 2U + 2 * 4);
  EXPECT_EQ(all[0].name, "none");
  for (const OverlapCandidate& candidate : all) {
    SCOPED_TRACE(candidate.name);
    trainer::Config config = tp2();
    config.tp_overlap.tp_comm_overlap = true;
    config.tp_overlap.tp_comm_overlap_cfg = candidate.entries;
    const auto layout = trainer::resolve(config);
    EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
    const bool bulk = candidate.name.starts_with("bulk");
    EXPECT_EQ(candidate.entries.at("fc1_wgrad.method"), bulk ? "bulk" : "none");
    EXPECT_EQ(candidate.entries.at("fc1_fprop.method") == "none", bulk || candidate.name == "none");
  }
  EXPECT_EQ(all[1].name, "ring-exchange-ce");
  EXPECT_FALSE(all[1].entries.contains("proj_fprop.num_sm"));
  EXPECT_EQ(all[7].name, "pipeline2-sm16");
  EXPECT_EQ(all[7].entries.at("proj_fprop.num_splits"), "2");
  EXPECT_EQ(all[7].entries.at("proj_fprop.num_sm"), "16");
}

// 21 positions a rank: neither two nor four parts.
TEST(OverlapCandidates, WhatTheShapeDoesNotTakeIsNone) {
  trainer::Config config = tp2();
  config.train.seq_length = 42;
  for (const OverlapCandidate& candidate : overlap_candidates(config, {8}))
    EXPECT_FALSE(candidate.name.starts_with("pipeline")) << candidate.name;
}

TEST(OverlapCandidates, WhatDidNotEndWellIsLeftOutByName) {
  auto candidates = overlap_candidates(tp2(), {8});
  baselines::Run run;
  for (const OverlapCandidate& candidate : candidates) {
    baselines::Cell cell;
    cell.name = candidate.name;
    run.cells.push_back(cell);
  }
  run.cells[1].status = baselines::CellStatus::kUnstable, run.cells[1].reason = "its steps never settled";
  run.cells[3].status = baselines::CellStatus::kBroken;
  const auto out = leave_out(run, candidates);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].candidate, run.cells[1].name);
  EXPECT_EQ(out[0].why, "its steps never settled");
  EXPECT_EQ(out[1].why, "broken");
  ASSERT_EQ(candidates.size(), run.cells.size() - 2);
  EXPECT_EQ(candidates[1].name, run.cells[2].name);
}

class ChooseOverlap : public testing::Test {
 protected:
  ChooseOverlap() : candidates_(overlap_candidates(tp2(), {8, 16})) {
    for (const OverlapCandidate& candidate : candidates_)
      for (const char* site : {"fc1_fprop", "fc1_bprop", "fc2_fprop"}) times_[candidate.name][site] = around(100);
  }
  const SiteChoice& site(const OverlapChoice& choice, std::string_view name) const {
    for (const SiteChoice& s : choice.sites)
      if (s.site == name) return s;
    throw std::out_of_range("no site");
  }

  std::vector<OverlapCandidate> candidates_;
  OverlapTimes times_;
};

TEST_F(ChooseOverlap, NothingFasterIsNothingChosen) {
  const OverlapChoice choice = choose_overlap(candidates_, times_);
  EXPECT_FALSE(choice.overlaps());
  for (const SiteChoice& s : choice.sites) EXPECT_EQ(s.candidate, "none");
  for (const auto& [entry, value] : choice.entries)
    EXPECT_TRUE(!entry.ends_with(".method") || value == "none") << entry;
}

TEST_F(ChooseOverlap, EachSiteTakesItsFastestOfWhateverNumberOfSms) {
  times_["ring-exchange-sm16"]["fc1_fprop"] = around(70);
  times_["pipeline4-sm16"]["fc1_fprop"] = around(80);
  times_["bulk-sm16"]["fc1_bprop"] = around(85);
  times_["pipeline4-sm8"]["fc2_fprop"] = around(60);
  const OverlapChoice choice = choose_overlap(candidates_, times_);
  EXPECT_TRUE(choice.overlaps());
  EXPECT_EQ(site(choice, "fc1_fprop").candidate, "ring-exchange-sm16");
  EXPECT_EQ(site(choice, "fc1_bprop").candidate, "bulk-sm16");
  EXPECT_EQ(site(choice, "fc2_fprop").candidate, "pipeline4-sm8");
  EXPECT_EQ(choice.entries.at("fc1_fprop.method"), "ring_exchange");
  EXPECT_EQ(choice.entries.at("fc1_dgrad.method"), "bulk");
  EXPECT_EQ(choice.entries.at("fc1_wgrad.num_sm"), "16");
  EXPECT_EQ(choice.entries.at("fc2_fprop.num_sm"), "8");
}

TEST_F(ChooseOverlap, AGainWithinTheNoiseIsNone) {
  times_["bulk-sm8"]["fc1_bprop"] = {60, 100, 140};
  times_["none"]["fc1_bprop"] = {70, 110, 150};
  EXPECT_FALSE(choose_overlap(candidates_, times_).overlaps());
}

// Two arms of two launches each would not show it.
TEST_F(ChooseOverlap, TwoLaunchesOfManyCandidatesShowAGain) {
  for (auto& [candidate, sites] : times_)
    for (auto& [site, ns] : sites) ns = {99, 101};
  times_["pipeline2-sm8"]["fc2_fprop"] = {89, 91};
  const OverlapChoice choice = choose_overlap(candidates_, times_);
  EXPECT_EQ(site(choice, "fc2_fprop").candidate, "pipeline2-sm8");
  EXPECT_EQ(site(choice, "fc1_fprop").candidate, "none");
}

// Bulk leaves fc1_fprop as it is, so what it was timed at there is noise.
TEST_F(ChooseOverlap, AMethodCountsOnlyWhereItStands) {
  times_["bulk-sm8"]["fc1_fprop"] = around(50);
  EXPECT_FALSE(choose_overlap(candidates_, times_).overlaps());
}

TEST_F(ChooseOverlap, WhatIsWrittenIsReadAsTheSameKnobs) {
  times_["pipeline4-sm8"]["fc2_fprop"] = around(60);
  OverlapTuning tuning;
  tuning.choice = choose_overlap(candidates_, times_);
  tuning.judgements = {{"seq_length=32", {}, {}}};
  tuning.judgements[0].over_none.text = "-3.00 %";
  const auto settings = read_settings({}, {});
  ASSERT_TRUE(settings.has_value());
  const auto suite = parse_suite(
      "purpose = \"x\"\n" +
          [&] {
            std::string base = overlap_toml(tuning);
            for (const auto& [from, to] : {std::pair{"[overlap]", "[base.overlap]"},
                                           {"[overlap.tp_comm_overlap_cfg]", "[base.overlap.tp_comm_overlap_cfg]"}})
              base.replace(base.find(from), std::string(from).size(), to);
            return base;
          }() +
          "[[cell]]\nname = \"a\"\nset = { tp = 2, gpus = 2 }\n",
      "x.toml", *settings, {}, [](const trainer::Config&) { return Status{}; });
  ASSERT_TRUE(suite.has_value()) << format(suite.error());
  EXPECT_TRUE(suite->cells[0].config.tp_overlap.tp_comm_overlap);
  EXPECT_EQ(suite->cells[0].config.tp_overlap.tp_comm_overlap_cfg, tuning.choice.entries);
}

OverlapJudgement judged_as(Verdict over_none, Verdict over_defaults) {
  OverlapJudgement judged{"seq_length=32", {}, {}};
  judged.over_none.verdict = over_none, judged.over_defaults.verdict = over_defaults;
  return judged;
}

TEST(OverlapTuning, IsWorthItOnlyWhereEveryShapeSaysSo) {
  OverlapTuning tuning;
  EXPECT_FALSE(tuning.is_worth_it()) << "nothing is judged";
  tuning.judgements = {judged_as(Verdict::kFaster, Verdict::kInconclusive),
                       judged_as(Verdict::kFaster, Verdict::kSame)};
  EXPECT_TRUE(tuning.is_worth_it());
  tuning.unjudged = "not judged on micro_batch_size=2: stopped";
  EXPECT_FALSE(tuning.is_worth_it());
  tuning.unjudged.clear();
  tuning.judgements.push_back(judged_as(Verdict::kInconclusive, Verdict::kFaster));
  EXPECT_FALSE(tuning.is_worth_it());
  tuning.judgements.back() = judged_as(Verdict::kFaster, Verdict::kSlower);
  EXPECT_FALSE(tuning.is_worth_it());
}

TEST(OverlapTuning, NamesWhatIsLeftOutTheRoundsAndWhatIsNotJudged) {
  OverlapTuning tuning;
  tuning.left_out = {{"ring-exchange-sm8", "steps did not settle"}};
  tuning.choice.sites = {{"fc1_fprop", "bulk-sm8", 2e6, 1e6, "-50 %"}};
  tuning.rounds = 2, tuning.planned_rounds = 3;
  tuning.judgements = {judged_as(Verdict::kFaster, Verdict::kSame)};
  tuning.unjudged = "not judged on micro_batch_size=2: stopped";
  const auto footer = join(overlap_table(tuning).footer, "\n"), toml = overlap_toml(tuning);
  EXPECT_NE(toml.find("# fc1_fprop: bulk-sm8, 1.00 ms for 2.00 ms: -50 %"), std::string::npos) << toml;
  EXPECT_NE(footer.find("left out: ring-exchange-sm8, steps did not settle"), std::string::npos) << footer;
  for (const char* part :
       {"2 of 3 rounds", "on seq_length=32, beside the defaults", "not judged on micro_batch_size=2"}) {
    EXPECT_NE(footer.find(part), std::string::npos) << part;
    EXPECT_NE(toml.find(part), std::string::npos) << part;
  }
}

TEST(OverlapTuning, IsJudgedOnHalfTheSequenceAndOnTwiceTheMicroBatchWhereThatPlans) {
  trainer::Config config = tp2();
  config.train.seq_length = 64;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 1;
  auto shapes = other_shapes(config);
  ASSERT_TRUE(shapes.has_value());
  ASSERT_EQ(shapes->size(), 1U);
  config.train.global_batch_size = 4;
  shapes = other_shapes(config);
  ASSERT_TRUE(shapes.has_value());
  ASSERT_EQ(shapes->size(), 2U);
  EXPECT_EQ((*shapes)[1].name, "seq_length=32,micro_batch_size=2");
  EXPECT_EQ((*shapes)[1].config.train.micro_batch_size, 2);
  EXPECT_EQ((*shapes)[1].config.train.seq_length, 32);
}

TEST(OverlapTuning, RefusesWhatHasNothingToHideAndTheTunedShapeAsItsJudge) {
  auto settings = read_settings({}, {});
  ASSERT_TRUE(settings.has_value());
  settings->config.train.seq_length = 64;
  OverlapTuneOptions tuning;
  tuning.shapes = {{"seq_length=32", settings->config}};
  tuning.shapes[0].config.train.seq_length = 32;
  const auto alone = choose_overlap(*settings, {}, tuning);
  ASSERT_FALSE(alone.has_value());
  EXPECT_NE(alone.error().hint.find("tensor_model_parallel_size"), std::string::npos);
  settings->config.parallel = tp2().parallel;
  tuning.shapes.push_back({"seq_length=64", settings->config});
  const auto same = choose_overlap(*settings, {}, tuning);
  ASSERT_FALSE(same.has_value());
  EXPECT_NE(same.error().what.find("another shape"), std::string::npos);
}

}  // namespace
}  // namespace mbb::suites
