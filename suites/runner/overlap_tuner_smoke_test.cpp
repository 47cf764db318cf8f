// The overlap tuner end to end on CPU ranks: its cells run, their traces have the sites, the choice is judged. Times of
// threads say nothing, so what is chosen is left open.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "suites/runner/overlap_tuner.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

class OverlapTunerSmoke : public testing::Test {
 protected:
  OverlapTunerSmoke() : settings_(read_settings({}, {}).value()) {
    trainer::Config& config = settings_.config;
    config.parallel.gpus = config.parallel.tensor_model_parallel_size = 2;
    config.model.num_layers = 2;
    config.train.train_iters = 12;
    config.train.global_batch_size = 2;
    tuning_.sms = {4};
    tuning_.shapes = other_shapes(config).value();
    options_.command = "tune";
    options_.argv = {"mbbench", "tune", "--overlap"};
    options_.runs_dir = fs::path(testing::TempDir()) / ("mbbench_tune_overlap_" + std::to_string(getpid()));
    options_.program = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
    options_.quiet = true;
  }
  ~OverlapTunerSmoke() override { fs::remove_all(options_.runs_dir); }

  Settings settings_;
  OverlapTuneOptions tuning_;
  RunOptions options_;
};

TEST_F(OverlapTunerSmoke, TimesEverySiteInWholeRoundsAndJudgesTheChoiceOnOtherShapes) {
  options_.launches = 3;
  options_.next_round = [](int done) { return done < 2; };
  std::vector<size_t> tuned_for;
  tuning_.tune_gemms = [&](const std::vector<trainer::Config>& configs) { tuned_for.push_back(configs.size()); };
  auto tuned = choose_overlap(settings_, options_, tuning_);
  ASSERT_TRUE(tuned.has_value()) << format(tuned.error());
  EXPECT_EQ(tuned->rounds, 2);
  EXPECT_EQ(tuned->planned_rounds, 3);
  ASSERT_EQ(tuned->choice.sites.size(), 8U);
  for (const SiteChoice& site : tuned->choice.sites) EXPECT_GT(site.none_ns, 0) << site.site;
  EXPECT_FALSE(tuned->is_worth_it());

  options_.launches = 2;
  options_.next_round = {};
  tuned->choice.entries = overlap_candidates(settings_.config, {4}).back().entries;
  const Status judged = judge_overlap(settings_, options_, tuning_, *tuned);
  ASSERT_TRUE(judged.has_value()) << format(judged.error());
  ASSERT_EQ(tuned->judgements.size(), 2U);
  EXPECT_EQ(tuned_for, (std::vector<size_t>{6, 3, 3})) << "before each run, of all its cells";
  EXPECT_EQ(tuned->unjudged, "");
  for (const OverlapJudgement& on : tuned->judgements)
    for (const std::string& text : {on.over_none.text, on.over_defaults.text})
      EXPECT_NE(text.find("2 and 2 launches"), std::string::npos) << on.shape << ": " << text;
}

TEST_F(OverlapTunerSmoke, OneRoundIsNoChoice) {
  options_.launches = 2;
  tuning_.seconds = 0.001;
  const auto tuned = choose_overlap(settings_, options_, tuning_);
  ASSERT_FALSE(tuned.has_value());
  EXPECT_NE(tuned.error().what.find("1 of 2 rounds"), std::string::npos) << tuned.error().what;
}

// The stop comes between two launches.
TEST_F(OverlapTunerSmoke, WhatIsStoppedWhileItIsJudgedKeepsItsSites) {
  std::atomic<bool> stop = true;
  options_.launches = 2;
  options_.stop = &stop;
  OverlapTuning tuned;
  tuned.choice.sites = {{"fc1_fprop", "ring-exchange-sm4", 2, 1, ""}};
  tuned.choice.entries = overlap_candidates(settings_.config, {4}).back().entries;
  const Status judged = judge_overlap(settings_, options_, tuning_, tuned);
  ASSERT_FALSE(judged.has_value());
  EXPECT_EQ(judged.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(tuned.unjudged, "not judged on " + tuning_.shapes[0].name + ": stopped");
  EXPECT_EQ(overlap_table(tuned).rows.size(), 1U);
}

}  // namespace
}  // namespace mbb::suites
