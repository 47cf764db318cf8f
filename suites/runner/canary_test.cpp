// Canaries: they take time, are recorded, and only a change is told.
#include "suites/runner/canary.h"

#include <gtest/gtest.h>

#include "suites/runner/health.h"

namespace mbb::suites {
namespace {

TEST(Canary, FixedWorkTakesTimeAndIsKept) {
  const Canary one = run_canary();
  EXPECT_GT(one.arithmetic_ns, 100'000);
  EXPECT_GT(one.memory_ns, 100'000);
  baselines::Launch launch;
  record_canary(launch, {1'000'000, 2'000'000}, {1'000'000, 2'000'000});
  ASSERT_EQ(launch.counts.size(), 4U);
  EXPECT_EQ(launch.counts[0].name, "canary_arithmetic_before_ns");
  EXPECT_EQ(launch.counts[3].count, 2'000'000);
  EXPECT_EQ(canary_change(launch), 0);
  EXPECT_EQ(canary_change({}), 0) << "of a launch without canaries nothing is said";
}

TEST(Canary, AChangeNamesTheMachine) {
  baselines::Cell cell;
  cell.launches.resize(3);
  record_canary(cell.launches[0], {1'000'000, 2'000'000}, {1'020'000, 2'000'000});
  record_canary(cell.launches[1], {1'000'000, 2'000'000}, {1'000'000, 2'500'000});
  record_canary(cell.launches[2], {1'000'000, 2'000'000}, {700'000, 2'000'000});
  for (size_t i = 0; i < 3; ++i) cell.launches[i].index = static_cast<int>(i);
  judge_canaries(cell);
  ASSERT_EQ(cell.verdicts.size(), 2U);
  EXPECT_EQ(cell.verdicts[0].subject, "machine");
  EXPECT_NEAR(cell.verdicts[0].change, 0.25, 1e-12);
  EXPECT_NEAR(cell.verdicts[1].change, -0.3, 1e-12);
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
