// Steps that a user's command owes.
#include "analysis/gate/harness.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::analysis {
namespace {

baselines::Cell cell_of_five_launches() {
  baselines::Cell cell;
  cell.knobs = {{.key = "train.train_iters", .value = "30", .source = "suite"}};
  for (int index = 0; index < 5; ++index) {
    baselines::Launch launch;
    launch.index = index;
    for (int i = 0; i < 30; ++i) {
      baselines::Step step;
      step.index = i;
      step.wall_ns = 100'000'000;
      step.loss = 3.0;
      launch.steps.push_back(step);
    }
    cell.launches.push_back(std::move(launch));
  }
  return cell;
}

TEST(HarnessError, AUsersCommandMayLogEveryTenthStepWithoutALoss) {
  baselines::Cell cell = cell_of_five_launches();
  cell.knobs.clear();
  for (auto& launch : cell.launches)
    for (auto& step : launch.steps) step.index *= 10, step.loss = std::nan("");
  EXPECT_EQ(harness_error(cell), "");
  cell.launches[0].steps[3].index += 10;
  EXPECT_EQ(harness_error(cell), "launch 0: step 30 is missing: step 40 stands in its place");
}

TEST(HarnessError, ACommandsLaunchesOweEqualStepsAndThoseThatWereSet) {
  baselines::Cell cell = cell_of_five_launches();
  cell.knobs = {{.key = "command.run", .value = "train", .source = "suite"}};
  EXPECT_EQ(harness_error(cell), "");
  EXPECT_EQ(harness_error(cell, 40), "launch 0: 30 steps were recorded, where those it is held against have 40");
  cell.launches[1].steps.pop_back();
  EXPECT_EQ(harness_error(cell), "launch 1: 29 steps were recorded, where those it is held against have 30");
  cell = cell_of_five_launches();
  cell.knobs.push_back({.key = "command.run", .value = "train", .source = "suite"});
  EXPECT_EQ(harness_error(cell), "") << "as many as train_iters";
  cell.knobs[0].value = "40";
  EXPECT_EQ(harness_error(cell), "launch 0: it ended at step 30 of 40");
  cell.knobs.push_back({.key = "import.cell", .value = "one", .source = "command line"});
  cell.knobs.erase(cell.knobs.begin() + 1);
  EXPECT_EQ(harness_error(cell), "") << "nobody here planned an imported log";
  cell.status = baselines::CellStatus::kBroken, cell.reason = "ended by signal 9";
  EXPECT_EQ(no_evidence(cell), "ended by signal 9");
}

TEST(HarnessError, ACellThatNeverBeganSaysWhy) {
  baselines::Cell cell;
  EXPECT_EQ(harness_error(cell), "no launch was recorded");
  cell.reason = "tp = 3 does not divide 4 heads";
  EXPECT_EQ(harness_error(cell), "tp = 3 does not divide 4 heads");
}

}  // namespace
}  // namespace mbb::analysis
