// What the records of a log's steps are: tokens of each step's own batch, rates of one batch, numbers that are none.
#include "suites/foreign/log_records.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "analysis/metrics/cell_metrics.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

// Steps of 20 s and a jitter, `sizes` sequences each.
TrainingLog log_of(const std::vector<std::pair<int, int64_t>>& sizes) {
  TrainingLog log;
  for (const auto& [steps, sequences] : sizes)
    for (int i = 0; i < steps; ++i) {
      LoggedStep step;
      step.index = static_cast<int64_t>(log.steps.size()) + 1;
      step.seconds = 20 + 0.001 * static_cast<double>((step.index * 7) % 5);
      step.sequences = log.global_batch_size = sequences;
      step.loss = 2;
      log.steps.push_back(step);
    }
  return log;
}

baselines::Cell cell_of(const TrainingLog& log) {
  baselines::Cell cell;
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.gpus = 8;
  const LogContext context = context_of(log, {0, 8, 8192});
  cell.launches.push_back(launch_of(log, context));
  cell.work.tokens_per_step = context.tokens_per_step;
  settle_batch(cell);
  return cell;
}

TEST(LogRecords, RatesOfAGrowingBatchAreOfOneBatch) {
  baselines::Cell cell = cell_of(log_of({{110, 128}, {20, 256}}));
  EXPECT_EQ(cell.launches[0].steps.front().tokens, 128 * 8192);
  EXPECT_EQ(cell.launches[0].steps.back().tokens, 256 * 8192);
  EXPECT_EQ(cell.work.tokens_per_step, 128 * 8192) << "not the last batch's";
  ASSERT_EQ(cell.verdicts.size(), 1U);
  EXPECT_EQ(cell.verdicts[0].subject, "batch");
  EXPECT_NE(cell.verdicts[0].text.find("the 110 steps of 1048576 tokens"), std::string::npos) << cell.verdicts[0].text;
  const analysis::StepTime time = analysis::step_time(cell);
  EXPECT_LE(time.steady_steps, 110U);
  ASSERT_TRUE(analysis::fill_metrics(cell, {}));
  EXPECT_NEAR(analysis::find(cell, "tokens_per_second_per_gpu")->value, 128 * 8192 / 20.0 / 8, 5);
  for (const baselines::Step& step : cell.launches[0].steps)
    EXPECT_TRUE(step.index <= 110 || (step.flags & baselines::kStepWarmUp) != 0U)
        << step.index << ": part of no metric";
}

TEST(LogRecords, StepsOfOtherTimesAndSizesAreNotTimed) {
  TrainingLog log = log_of({{10, 64}, {50, 256}, {10, 64}, {50, 256}});
  for (LoggedStep& step : log.steps)
    if (step.sequences == 64) step.seconds = 5;
  baselines::Cell cell = cell_of(log);
  EXPECT_EQ(cell.work.tokens_per_step, 256 * 8192);
  const analysis::StepTime time = analysis::step_time(cell);
  EXPECT_EQ(time.steady_steps, 100U);
  EXPECT_NEAR(time.estimate.value, 20.002e9, 2e6);
}

TEST(LogRecords, WhereNoSizeIsSharedTheMedianOfTheTokensStands) {
  TrainingLog log = log_of({{40, 0}});
  for (LoggedStep& step : log.steps) step.tokens = 1000 + step.index;
  const baselines::Cell cell = cell_of(log);
  EXPECT_EQ(cell.work.tokens_per_step, 1021);
  EXPECT_EQ(cell.verdicts.at(0).subject, "batch");
}

TEST(LogRecords, EqualStepsHaveNoVerdictOnTheirBatch) {
  const baselines::Cell cell = cell_of(log_of({{30, 128}}));
  EXPECT_EQ(cell.work.tokens_per_step, 128 * 8192);
  EXPECT_TRUE(cell.verdicts.empty());
}

TEST(LogRecords, ALossThatIsNoNumberBreaksTheCell) {
  TrainingLog log = log_of({{100, 128}});
  for (size_t i = 5; i < 100; ++i) log.steps[i].set_loss(std::nan(""));
  baselines::Cell cell = cell_of(log);
  judge_numerics(cell, {log});
  EXPECT_EQ(cell.status, CellStatus::kBroken);
  EXPECT_NE(cell.reason.find("the loss of step 6 is nan (that of 95 of 100 steps"), std::string::npos) << cell.reason;
}

TEST(LogRecords, SkippedUpdatesAreSaidAndManyBreakTheCell) {
  const auto judged = [](size_t skipped) {
    TrainingLog log = log_of({{100, 128}});
    for (size_t i = 0; i < skipped; ++i) log.steps[2 * i].skipped = 1;
    baselines::Cell cell = cell_of(log);
    judge_numerics(cell, {log});
    return cell;
  };
  EXPECT_EQ(judged(50).status, CellStatus::kBroken);
  EXPECT_NE(judged(50).reason.find("50 of 100 steps skipped their update"), std::string::npos);
  EXPECT_EQ(judged(3).status, CellStatus::kOk);
  ASSERT_EQ(judged(3).verdicts.size(), 1U);
  EXPECT_EQ(judged(3).verdicts[0].subject, "updates");
  EXPECT_TRUE(judged(0).verdicts.empty());
}

TEST(LogRecords, WhatIsReservedBesideIsCalledSo) {
  TrainingLog log = log_of({{10, 128}});
  log.peak_allocated_bytes = 50;
  log.peak_reserved_bytes = 60;
  const baselines::Launch launch = launch_of(log, {});
  ASSERT_EQ(launch.memory.at(0).categories.size(), 2U);
  EXPECT_EQ(launch.memory[0].peak_bytes, 60);
  EXPECT_EQ(launch.memory[0].categories[1].category, "not handed out");
  EXPECT_EQ(launch.memory[0].categories[1].measured_bytes, 10);
  log.peak_allocated_bytes = 0;
  EXPECT_EQ(launch_of(log, {}).memory.at(0).categories.at(0).category, "reserved");
}

TEST(LogRecords, AMillionStepsAreReadOnce) {  // each step once: as many times as there are steps takes hours
  TrainingLog log;
  log.steps.resize(1'000'000);
  for (size_t i = 0; i < log.steps.size(); ++i) log.steps[i] = {.index = static_cast<int64_t>(i) + 1, .seconds = 0.5};
  baselines::Cell cell;
  cell.launches.push_back(launch_of(log, {}));
  judge_numerics(cell, {log});
  EXPECT_EQ(cell.launches[0].steps.size(), log.steps.size());
  EXPECT_EQ(cell.status, baselines::CellStatus::kOk);
}

}  // namespace
}  // namespace mbb::suites
