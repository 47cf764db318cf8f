// The overlap tuner end to end on CPU ranks: its cells run, their traces have the sites, the choice is judged. Times of
// threads say nothing, so what is chosen is left open.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "suites/runner/overlap_tuner.h"

namespace mbb::suites {
namespace {

TEST(OverlapTunerSmoke, TimesEverySiteAndJudgesTheChoiceOnAnotherShape) {
  namespace fs = std::filesystem;
  auto settings = read_settings({}, {});
  ASSERT_TRUE(settings.has_value());
  trainer::Config& config = settings->config;
  config.parallel.gpus = config.parallel.tensor_model_parallel_size = 2;
  config.model.num_layers = 2;
  config.train.train_iters = 12;
  config.train.global_batch_size = 2;
  OverlapTuneOptions tuning;
  tuning.sms = {4};
  tuning.judged = config;
  tuning.judged.train.seq_length = 32;
  RunOptions options;
  options.command = "tune";
  options.argv = {"mbbench", "tune", "--overlap"};
  options.runs_dir = fs::path(testing::TempDir()) / ("mbbench_tune_overlap_" + std::to_string(getpid()));
  options.program = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
  options.launches = 2;
  options.quiet = true;
  const auto tuned = tune_overlap(*settings, options, tuning);
  ASSERT_TRUE(tuned.has_value()) << format(tuned.error());
  ASSERT_EQ(tuned->choice.sites.size(), 8U);
  for (const SiteChoice& site : tuned->choice.sites) EXPECT_GT(site.none_ns, 0) << site.site;
  EXPECT_NE(tuned->over_none.text.find("2 and 2 launches"), std::string::npos) << tuned->over_none.text;
  EXPECT_FALSE(overlap_table(*tuned).rows.empty());
  fs::remove_all(options.runs_dir);
}

}  // namespace
}  // namespace mbb::suites
