// The loss verdict: equal, different, different length, nothing to compare with.
#include "suites/runner/equality.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

baselines::Cell cell(const std::string& name, int ranks, std::vector<double> losses,
                     const std::string& recipe = "fp32") {
  baselines::Cell c;
  c.name = name;
  c.model = "m";
  c.ranks = ranks;
  c.knobs = {{"precision.recipe", recipe}, {"parallel.gpus", std::to_string(ranks)}, {"train.seed", "1"}};
  c.metrics.push_back({"step_time", 1e6});
  baselines::Launch launch;
  for (size_t i = 0; i < losses.size(); ++i) {
    baselines::Step step;
    step.index = static_cast<int64_t>(i);
    step.loss = losses[i];
    launch.steps.push_back(step);
  }
  c.launches.push_back(launch);
  return c;
}

TEST(Equality, EqualLossesGetAVerdictAndKeepTheirNumbers) {
  baselines::Cell two = cell("tp2", 2, {5.0, 4.0 + 1e-6});
  judge_losses(two, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kOk);
  ASSERT_EQ(two.verdicts.size(), 1U);
  EXPECT_EQ(two.verdicts[0].verdict, baselines::Verdict::kSame);
  EXPECT_EQ(two.verdicts[0].against, "one");
  EXPECT_EQ(two.metrics.size(), 1U);
}

TEST(Equality, ADifferentLossBreaksTheCellAndTakesItsNumbers) {
  for (const double wrong : {4.0 + 1e-4, std::numeric_limits<double>::quiet_NaN()}) {
    baselines::Cell two = cell("tp2", 2, {5.0, wrong});
    judge_losses(two, {cell("one", 1, {5.0, 4.0})});
    EXPECT_EQ(two.status, baselines::CellStatus::kBroken) << wrong;
    EXPECT_TRUE(two.metrics.empty());
    EXPECT_NE(two.reason.find("step 1"), std::string::npos) << two.reason;
  }
}

TEST(Equality, AMissingStepBreaksTheCell) {
  baselines::Cell two = cell("tp2", 2, {5.0});
  judge_losses(two, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kBroken);
}

TEST(Equality, KnobsThatOnlySayHowTheWorkIsRunDoNotMakeItOtherWork) {
  for (const char* knob : {"memory.recompute_granularity", "memory.cpu_offloading", "fusion.residual_fusion"}) {
    baselines::Cell again = cell("again", 1, {5.0, 4.5});
    again.knobs.push_back({knob, "other"});
    judge_losses(again, {cell("one", 1, {5.0, 4.0})});
    EXPECT_EQ(again.status, baselines::CellStatus::kBroken) << knob;
  }
  baselines::Cell frozen = cell("frozen", 1, {5.0, 4.5});
  frozen.knobs.push_back({"memory.frozen", "embedding.*"});
  judge_losses(frozen, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(frozen.status, baselines::CellStatus::kOk);
}

TEST(Equality, OtherWorkIsNotCompared) {
  baselines::Cell two = cell("tp2", 2, {5.0, 1.0});
  baselines::Cell other = cell("one", 1, {5.0, 4.0});
  other.knobs[2].value = "2";
  judge_losses(two, {other, cell("bf16", 1, {5.0, 4.0}, "bf16"), cell("two", 2, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kOk);
  EXPECT_TRUE(two.verdicts.empty());
}

}  // namespace
}  // namespace mbb::suites
