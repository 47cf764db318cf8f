// Drifts in time with the clock that explains them, and without.
#include "suites/runner/drift.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/base/file.h"
#include "suites/runner/child.h"

namespace mbb::suites {
namespace {

// 100 steps of 30 ms, sampled every 100 ms. `clock` and `work`: relative changes from the first step to the last.
struct Watched {
  baselines::Launch launch;
  std::vector<StepEnd> ends;
  std::vector<profiler::ClockSample> samples;

  Watched(double clock, double work) {
    int64_t now = 1'000'000'000;
    for (int64_t i = 0; i < 100; ++i) {
      const double at = static_cast<double>(i) / 99;
      const double noise = 0.001 * static_cast<double>((i * 37) % 11 - 5) / 5;
      baselines::Step step;
      step.index = i;
      step.wall_ns = static_cast<int64_t>(30e6 * (1 + work * at) / (1 + clock * at) * (1 + noise));
      now += step.wall_ns;
      launch.steps.push_back(step);
      ends.push_back({i, now});
    }
    for (int64_t at = 1'000'000'000; at < now + 100'000'000; at += 100'000'000) {
      const double share = static_cast<double>(at - 1'000'000'000) / static_cast<double>(now - 1'000'000'000);
      samples.push_back({at, 1500.0 * (1 + clock * share)});
    }
  }

  baselines::Cell judged() const {
    baselines::Cell cell;
    judge_drift(cell, launch, clock_steps(launch, ends, samples));
    return cell;
  }
};

TEST(Drift, AFallingClockIsNamedAndTheProgramIsNot) {
  const baselines::Cell cell = Watched(-0.04, 0).judged();
  ASSERT_EQ(cell.verdicts.size(), 1U);
  EXPECT_EQ(cell.verdicts[0].subject, "drift");
  EXPECT_NEAR(cell.verdicts[0].change, 0.04, 0.005);
  EXPECT_NE(cell.verdicts[0].text.find("power or heat, not the program"), std::string::npos) << cell.verdicts[0].text;
}

TEST(Drift, WorkThatGrowsUnderASteadyClockIsTheWork) {
  const baselines::Cell cell = Watched(0, 0.04).judged();
  ASSERT_EQ(cell.verdicts.size(), 1U);
  EXPECT_NE(cell.verdicts[0].text.find("the work itself changes"), std::string::npos) << cell.verdicts[0].text;
}

TEST(Drift, SteadyStepsSayNothing) {
  EXPECT_TRUE(Watched(0, 0).judged().verdicts.empty());
  EXPECT_TRUE(Watched(-0.03, -0.03).judged().verdicts.empty()) << "a clock that falls without a step that grows";
}

TEST(Drift, AnUnstableCellSaysWhy) {
  const Watched run(-0.04, 0);
  baselines::Cell cell;
  cell.status = baselines::CellStatus::kUnstable;
  cell.reason = "no steady state";
  judge_drift(cell, run.launch, clock_steps(run.launch, run.ends, run.samples));
  EXPECT_NE(cell.reason.find("no steady state; the steps of launch 0 drift"), std::string::npos) << cell.reason;
}

TEST(Drift, WarmUpAndProfiledStepsAreLeftOut) {
  Watched run(0, 0);
  run.launch.steps[0].flags = baselines::kStepWarmUp;
  run.launch.steps[50].flags = baselines::kStepProfiled;
  EXPECT_EQ(clock_steps(run.launch, run.ends, run.samples).ns.size(), 98U);
  EXPECT_TRUE(clock_steps(run.launch, run.ends, {}).ns.empty()) << "without samples nothing is clocked";
}

TEST(Drift, FilesOfALaunchAreRead) {
  const std::filesystem::path folder = testing::TempDir() + "drift-" + std::to_string(getpid());
  ASSERT_TRUE(make_dirs(folder));
  EXPECT_FALSE(read_clocked_steps({}, folder)) << "a launch on CPU ranks leaves no clocks";
  ASSERT_TRUE(write_file(folder / kTelemetryFile, "at_ns,gpu,sm_mhz\n100,-1,\n1000,0,1500\n1100,0,1400\n"));
  ASSERT_TRUE(write_file(folder / kStepEndsFile, "index,end_ns\n0,1040\n1,1110\n"));
  baselines::Launch launch;
  launch.steps.resize(2);
  launch.steps[0] = {.index = 0, .wall_ns = 60};
  launch.steps[1] = {.index = 1, .wall_ns = 20};
  const auto steps = read_clocked_steps(launch, folder);
  ASSERT_TRUE(steps) << steps.error().what;
  EXPECT_EQ(steps->mhz, (std::vector<double>{1500, 1400}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mbb::suites
