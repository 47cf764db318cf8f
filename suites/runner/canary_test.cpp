// Canaries: they take time, are recorded, and only a change is told.
#include "suites/runner/canary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "suites/runner/health.h"

namespace mbb::suites {
namespace {

// A canary of those best times, with the same spread.
Canary of(int64_t arithmetic_ns, int64_t memory_ns, int64_t spread_ns = 0) {
  return {{arithmetic_ns, spread_ns}, {memory_ns, spread_ns}};
}

double change_of(const Canary& before, const Canary& after) {
  baselines::Launch launch;
  record_canary(launch, before, after);
  return canary_change(launch).by;
}

TEST(Canary, FixedWorkTakesTimeAndIsKept) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(&run_canary) % 64, 0U) << "or it moves with what else is linked";
  const Canary one = run_canary();
  EXPECT_GT(one.arithmetic.best_ns, 100'000);
  EXPECT_GT(one.memory.best_ns, 100'000);
  EXPECT_GE(one.arithmetic.spread_ns, 0);
  baselines::Launch launch;
  record_canary(launch, of(1'000'000, 2'000'000, 7), of(1'000'000, 2'000'000, 9));
  ASSERT_EQ(launch.counts.size(), 8U);
  EXPECT_EQ(launch.counts[0].name, "canary_arithmetic_before_ns");
  EXPECT_EQ(launch.counts[3].name, "canary_arithmetic_after_spread_ns");
  EXPECT_EQ(launch.counts[3].count, 9);
  EXPECT_EQ(canary_change(launch).by, 0);
  EXPECT_EQ(canary_change({}).by, 0) << "of a launch without canaries nothing is said";
}

TEST(Canary, AChangeNamesTheMachine) {
  baselines::Cell cell;
  cell.launches.resize(3);
  record_canary(cell.launches[0], of(1'000'000, 2'000'000), of(1'020'000, 2'000'000));
  record_canary(cell.launches[1], of(1'000'000, 2'000'000), of(1'000'000, 2'500'000));
  record_canary(cell.launches[2], of(1'000'000, 2'000'000), of(700'000, 2'000'000));
  for (size_t i = 0; i < 3; ++i) cell.launches[i].index = static_cast<int>(i);
  judge_canaries(cell);
  ASSERT_EQ(cell.verdicts.size(), 2U);
  EXPECT_EQ(cell.verdicts[0].subject, "machine");
  EXPECT_NEAR(cell.verdicts[0].change, 0.25, 1e-12);
  EXPECT_TRUE(cell.verdicts[0].text.starts_with("fixed work on the CPU took +25 %")) << cell.verdicts[0].text;
  EXPECT_NEAR(cell.verdicts[1].change, -0.3, 1e-12);

  baselines::Step step;
  step.reference_ns = 1'000'000;
  for (auto& launch : cell.launches) launch.steps.push_back(step);
  cell.verdicts.clear();
  judge_canaries(cell);
  EXPECT_TRUE(cell.verdicts.empty()) << "fixed work beside each step takes the machine out";
}

TEST(Canary, AMachineWhoseWorkIsNeverEvenSaysNothing) {
  EXPECT_NEAR(change_of(of(1'000'000, 2'000'000, 20'000), of(1'200'000, 2'000'000, 20'000)), 0.2, 1e-12);
  EXPECT_EQ(change_of(of(1'000'000, 2'000'000, 20'000), of(1'200'000, 2'000'000, 150'000)), 0)
      << "batches of one canary lie 15 % apart: 20 % between two is nothing";
  EXPECT_EQ(change_of(of(1'000'000, 2'000'000, 150'000), of(1'200'000, 2'000'000, 20'000)), 0);
  EXPECT_NEAR(change_of(of(1'000'000, 2'000'000, 150'000), of(1'900'000, 2'000'000, 150'000)), 0.9, 1e-12);
}

TEST(Canary, AGpusIsToldFromTheCpusAndStandsOutSooner) {
  baselines::Launch launch;
  record_canary(launch, of(1'000'000, 2'000'000), of(1'060'000, 2'000'000));
  record_canary(launch, of(1'000'000, 90'000), of(1'020'000, 90'000), 0);
  ASSERT_EQ(launch.counts.size(), 20U);
  EXPECT_EQ(launch.counts[8].name, "canary_gpu_arithmetic_before_ns");
  EXPECT_EQ(canary_change(launch).by, 0) << "2 % of a GPU and 6 % of a CPU are nothing";
  record_canary(launch, of(1'000'000, 90'000), of(1'000'000, 97'200), 0);
  EXPECT_NEAR(canary_change(launch).by, 0.08, 1e-12) << "the last record counts";
}

TEST(Canary, AStrangerOnAGpuMakesItsTimesNoEvidence) {
  const auto of_gpu = [](int64_t share_ns) { return Canary{{1'125'280, 3'744}, {71'263, 3'648}, {share_ns, 9'000}}; };
  baselines::Cell cell;
  cell.launches.resize(2);
  record_canary(cell.launches[0], of_gpu(1'126'100), of_gpu(2'250'560), 1);
  record_canary(cell.launches[1], of_gpu(1'126'100), of_gpu(1'126'100), 1);
  EXPECT_EQ(canary_change(cell.launches[0]).by, 0) << "told once";
  judge_canaries(cell);
  ASSERT_EQ(cell.verdicts.size(), 1U);
  EXPECT_EQ(cell.verdicts[0].subject, "machine");
  EXPECT_TRUE(cell.verdicts[0].text.starts_with("another process uses GPU 1:")) << cell.verdicts[0].text;
}

TEST(Canary, OtherRanksLeaveTheirGpus) {
  const std::filesystem::path folder = testing::TempDir() + "canary-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  baselines::Launch launch;
  take_canary(folder / "1", launch);
  ASSERT_EQ(launch.counts.size(), 1U);
  EXPECT_EQ(launch.counts[0].name, "canary of rank 1: none was left");
  ASSERT_TRUE(leave_canary(folder, of(1'000'000, 90'000, 5), of(1'000'000, 99'000, 5), 1));
  launch = {};
  record_canary(launch, of(1'000'000, 90'000), of(1'000'000, 90'000), 0);
  take_canary(folder, launch);
  ASSERT_EQ(launch.counts.size(), 24U);
  EXPECT_EQ(launch.counts[19].name, "canary_gpu1_memory_after_spread_ns");
  EXPECT_EQ(launch.counts[19].count, 5);
  EXPECT_EQ(launch.counts[20].name, "canary_gpu1_share_before_ns");
  EXPECT_NEAR(canary_change(launch).by, 0.1, 1e-12) << "the second GPU's memory became slower";
  std::filesystem::remove_all(folder);
}

TEST(Canary, WithoutAGpuItSaysSo) {
  const auto timed = run_gpu_canary(0);
  if (timed)
    EXPECT_GT(std::min(timed->arithmetic.best_ns, timed->share.best_ns), 0);
  else
    EXPECT_FALSE(timed.error().what.empty());
}

TEST(Health, AnIllDeviceMakesACellUnstable) {
  baselines::Cell cell;
  cell.launches.resize(1);
  profiler::TelemetrySummary summary;
  judge_health(cell, cell.launches[0], summary);
  EXPECT_EQ(cell.status, baselines::CellStatus::kOk);
  summary.gpus.resize(1);
  summary.gpus[0].samples = 10;
  summary.gpus[0].ecc_uncorrected = 1;
  judge_health(cell, cell.launches[0], summary);
  EXPECT_EQ(cell.status, baselines::CellStatus::kUnstable);
  EXPECT_NE(cell.reason.find("uncorrected"), std::string::npos);
  EXPECT_EQ(cell.launches[0].counts.size(), 1U);
  EXPECT_FALSE(launch_telemetry("/no/such/folder"));
}

}  // namespace
}  // namespace mbb::suites
