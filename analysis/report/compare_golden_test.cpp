// Goldens and sums of the comparison of two runs.
#include "analysis/report/compare.h"

#include <gtest/gtest.h>

#include "analysis/exposure/op_rows.h"

namespace mbb::analysis {
namespace {

using baselines::Cell;
using baselines::Launch;
using baselines::Run;

Cell cell_of(const std::string& cell_name, std::vector<int64_t> launch_ns) {
  Cell cell;
  cell.name = cell_name;
  cell.device = "cpu";
  cell.model = "m";
  cell.work.tokens_per_step = 1024;
  cell.knobs = {{.key = "parallel.tp", .value = "1"}, {.key = "precision.recipe", .value = "bf16"}};
  double sum = 0;
  for (size_t i = 0; i < launch_ns.size(); ++i) {
    Launch launch;
    launch.index = static_cast<int>(i);
    for (int step = 0; step < 12; ++step) {
      baselines::Step one;
      one.index = step;
      one.wall_ns = launch_ns[i];
      launch.steps.push_back(one);
    }
    cell.launches.push_back(launch);
    sum += static_cast<double>(launch_ns[i]);
  }
  cell.metrics.push_back({.name = "step_time", .value = sum / static_cast<double>(launch_ns.size()), .unit = "ns"});
  cell.metrics.push_back({.name = "exposed_comm", .value = 4.0, .unit = "%"});
  return cell;
}

void add_op(Cell& cell, const std::string& path, int64_t ns, size_t of = 0) {
  Launch& launch = cell.launches[of];
  launch.counts = {{std::string(kOpStepsCount), 2}};
  baselines::OpRow row;
  row.path = path;
  row.rank_class = "stage0";
  row.total_ns = 2 * ns;
  launch.ops.push_back(row);
}

struct Pair {
  Run before;
  Run after;
};

Pair runs() {
  Pair pair;
  pair.before.id = "r-old";
  pair.after.id = "r-new";
  pair.before.cells = {cell_of("a", {200'000'000, 201'000'000, 199'000'000}), cell_of("gone", {5'000'000})};
  pair.after.cells = {cell_of("a", {180'000'000, 181'000'000, 179'000'000})};
  Cell skipped;
  skipped.name = "new";
  pair.after.cells.push_back(skipped);
  pair.after.cells[0].knobs[1].value = "fp8_current";
  pair.before.fingerprint.facts = {{"cpu.model", "A", true}, {"gpu.driver", "580", true}};
  pair.after.fingerprint.facts = {{"cpu.model", "A", true}, {"gpu.driver", "590", true}};
  pair.after.environment = {{"NCCL_ALGO", "Ring", false}, {"SECRET", "ab12", true}};
  return pair;
}

TEST(CompareGolden, ProjectedStepsHaveNoLaunchesToLack) {
  Pair pair = runs();
  for (baselines::Run* run : {&pair.before, &pair.after}) {
    run->cells.resize(1);
    run->cells[0].result_class = baselines::ResultClass::kProjected;
    run->cells[0].launches.clear();
  }
  const std::string text = to_text(compare_table(pair.before, pair.after));
  EXPECT_NE(text.find("-10.0 %  projected: no launches"), std::string::npos) << text;
  EXPECT_NE(text.find("projected: simulated from cost tables"), std::string::npos) << text;
  EXPECT_EQ(text.find("not evidence"), std::string::npos) << text;
}

TEST(CompareGolden, CellsSideBySide) {
  const Pair pair = runs();
  EXPECT_EQ(to_text(compare_table(pair.before, pair.after)),
            "r-old -> r-new\n"
            "cell  step old  step new    change  relative  95 % interval    exposed comm    bubble  peak\n"
            "a     200.0 ms  180.0 ms  -20.0 ms   -10.0 %  -11.1 %..-8.9 %  4.0 % -> 4.0 %  -       -\n"
            "gone  only in the old run\n"
            "new   only in the new run\n"
            "Intervals cover 95 % (Welch) over at least 3 launches on each side; positive is slower.\n");
}

TEST(CompareGolden, WhatDiffers) {
  const Pair pair = runs();
  EXPECT_EQ(to_text(facts_table(pair.before, pair.after)),
            "what differs\n"
            "what                   cell  old   new\n"
            "knob precision.recipe  a     bf16  fp8_current\n"
            "host gpu.driver              580   590\n"
            "environment NCCL_ALGO        -     Ring\n"
            "environment SECRET           -     set, hash ab12\n");
  EXPECT_EQ(facts_table(pair.before, pair.before).footer[0], "Knobs, work, host and environment are equal.");
}

TEST(CompareGolden, OpsSumToTheStep) {
  Pair pair = runs();
  Cell& before = pair.before.cells[0];
  Cell& after = pair.after.cells[0];
  add_op(before, "layers.0.mlp.fc1.fwd", 60'000'000);
  add_op(before, "layers.1.mlp.fc1.fwd", 60'000'000);
  add_op(before, "head.fwd", 50'000'000);
  add_op(before, std::string(kIdlePath), 28'000'000);
  add_op(after, "layers.0.mlp.fc1.fwd", 50'000'000);
  add_op(after, "layers.1.mlp.fc1.fwd", 50'000'000);
  add_op(after, "head.fwd", 49'000'000);
  add_op(after, "quantize", 2'000'000);
  add_op(after, std::string(kIdlePath), 28'000'000);
  EXPECT_EQ(to_text(ops_table(before, after)),
            "a: where the step changed\n"
            "op                         old       new    change  95 % interval\n"
            "layers.*.mlp.fc1.fwd  120.0 ms  100.0 ms  -20.0 ms  -\n"
            "quantize                  0 ns   2.00 ms  +2.00 ms  -\n"
            "head.fwd               50.0 ms   49.0 ms  -1.00 ms  -\n"
            "(idle)                 28.0 ms   28.0 ms      0 ns  -\n"
            "not attributed         2.00 ms   1.00 ms  -1.00 ms  -\n"
            "sum                   200.0 ms  180.0 ms  -20.0 ms  -\n"
            "Intervals need two launches with traced steps on each side.\n");
  const Table few = ops_table(before, after, 1);
  ASSERT_EQ(few.rows.size(), 4u);
  EXPECT_EQ(few.rows[1].values[0].text, "other ops");
  EXPECT_NEAR(few.rows[3].values[3].number, -20e6, 1e-3);
}

TEST(Compare, EveryTermHasAnIntervalOverLaunchesAndTheySumExactly) {
  Pair pair = runs();
  Cell& before = pair.before.cells[0];
  Cell& after = pair.after.cells[0];
  for (size_t launch = 0; launch < 3; ++launch) {
    const auto wobble = static_cast<int64_t>(launch) * 100'001;
    add_op(before, "layers.0.fc1.fwd", 90'000'000 + wobble, launch);
    add_op(before, "head.fwd", 50'000'000 - wobble, launch);
    add_op(after, "layers.0.fc1.fwd", 70'000'000 + 2 * wobble, launch);
    add_op(after, "head.fwd", 50'000'003, launch);
    add_op(after, "quantize", 1'234'567, launch);
  }
  double sum = 0;
  for (const OpChange& op : op_changes(before, after)) {
    sum += op.change_ns();
    EXPECT_LE(op.low_ns, op.change_ns()) << op.path;
    EXPECT_GE(op.high_ns, op.change_ns()) << op.path;
  }
  const OpChange step = step_account(before, after);
  EXPECT_NEAR(sum, step.change_ns(), 1e-6);
  EXPECT_NEAR(step.change_ns(), -20e6, 1e-6);
  EXPECT_LT(step.low_ns, -20e6);
  EXPECT_GT(step.high_ns, -20e6);
  const Table table = ops_table(before, after);
  EXPECT_EQ(table.rows.back().values[0].text, "sum");
  EXPECT_NE(table.rows.back().values[4].text.find(".."), std::string::npos);
}

TEST(Compare, RanksThatShareCoresAreAccountedForByTheirReplayedSteps) {
  Pair pair = runs();
  Cell& before = pair.before.cells[0];
  Cell& after = pair.after.cells[0];
  for (Cell* cell : {&before, &after})
    for (size_t step : {10, 11}) {
      cell->launches[0].steps[step].modelled_ns = cell == &before ? 60'000'000 : 50'000'000;
      cell->launches[0].steps[step].flags |= baselines::kStepProfiled;
    }
  add_op(before, "fc1", 60'000'000);
  add_op(after, "fc1", 50'000'000);
  const std::vector<OpChange> changes = op_changes(before, after);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].change_ns(), -10e6);
  EXPECT_EQ(changes[1].path, "not attributed");
  EXPECT_EQ(changes[1].before_ns, 0) << "of the replayed step, not of what a busy machine's clock says";
  EXPECT_EQ(step_account(before, after).change_ns(), -10e6);
}

TEST(Compare, LaunchesOfTracedStepsOnlyAreAccountedForByThose) {
  Pair pair = runs();
  for (Cell* cell : {&pair.before.cells[0], &pair.after.cells[0]}) {
    cell->launches.resize(1);
    for (auto& step : cell->launches[0].steps) {
      step.flags = baselines::kStepProfiled;
      step.wall_ns = cell == &pair.before.cells[0] ? 70'000'000 : 50'000'000;
    }
  }
  add_op(pair.before.cells[0], "fc1", 60'000'000);
  add_op(pair.after.cells[0], "fc1", 45'000'000);
  const std::vector<OpChange> changes = op_changes(pair.before.cells[0], pair.after.cells[0]);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].change_ns(), -15e6);
  EXPECT_EQ(changes[1].path, "not attributed");
  EXPECT_EQ(changes[1].change_ns(), -5e6);
  EXPECT_EQ(step_account(pair.before.cells[0], pair.after.cells[0]).change_ns(), -20e6);
}

TEST(Compare, UnequalWorkLeadsWithTokensPerSecondAndGpu) {
  Pair pair = runs();
  pair.after.cells[0].work.tokens_per_step = 2048;
  pair.after.cells[0].gpus = 2;
  pair.before.cells[0].gpus = 1;
  const Table table = compare_table(pair.before, pair.after);
  EXPECT_EQ(table.columns[1].id, "rate_before");
  EXPECT_NEAR(table.rows[0].values[1].number, 1024 / 0.2, 5);
  EXPECT_NEAR(table.rows[0].values[2].number, 1024 / 0.18, 5);
  EXPECT_NEAR(table.rows[0].values[3].number, 100 * (0.2 / 0.18 - 1), 0.1);
  EXPECT_EQ(
      table.footer[0],
      "Unequal work, a: tokens a step 1024 -> 2048, GPUs 1 -> 2: judge tokens/s/GPU (positive is faster), not the "
      "step.");
  pair.after.cells[0].work.tokens_per_step = 0;
  EXPECT_EQ(compare_table(pair.before, pair.after).rows[0].values[1].text, "-");
}

TEST(Compare, MetricsOfBothSidesInTheirDeclaredForm) {
  const Pair pair = runs();
  const Table table = metrics_table(pair.before.cells[0], pair.after.cells[0]);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].values[0].text, "step");
  EXPECT_EQ(table.rows[0].values[3].text, "-10.0 %");
  EXPECT_EQ(table.rows[0].values[4].text, "lower");
  EXPECT_EQ(table.rows[1].values[1].text, "4.0 %");
}

TEST(Compare, ClassesAndBrokenCellsAreNotSetAgainstEachOther) {
  Pair pair = runs();
  pair.before.cells = {cell_of("a", {1'000'000, 1'000'000})};
  pair.after.cells = {cell_of("b", {1'000'000, 1'000'000})};
  EXPECT_EQ(compare_table(pair.before, pair.after).rows[0].values[0].text, "a -> b");
  pair.after.cells[0].result_class = baselines::ResultClass::kProjected;
  EXPECT_NE(compare_table(pair.before, pair.after).rows[0].note.find("result classes never mix"), std::string::npos);
  pair.after.cells[0] = cell_of("a", {1'000'000});
  pair.after.cells[0].status = baselines::CellStatus::kBroken;
  pair.after.cells[0].reason = "loss differs";
  EXPECT_EQ(compare_table(pair.before, pair.after).rows[0].note, "incomparable: a is broken: loss differs");
}

TEST(Compare, OneLaunchIsNotEvidence) {
  Pair pair = runs();
  pair.before.cells = {cell_of("a", {200'000'000})};
  pair.after.cells = {cell_of("a", {100'000'000})};
  const Table table = compare_table(pair.before, pair.after);
  EXPECT_EQ(table.rows[0].values[5].text, "one launch: not evidence");
  EXPECT_EQ(table.footer[0], "One launch: not evidence. A difference needs at least two launches on each side.");
  EXPECT_EQ(ops_table(pair.before.cells[0], pair.after.cells[0]).footer[0],
            "No op times on both sides for one rank class: profile_step_start and profile_step_end, or a run on CPU "
            "ranks, time ops.");
}

TEST(Compare, ProjectedStepsAreExplainedByTheirParts) {
  const auto projected = [](double step_ns, double tp, double bubble) {
    Cell cell = cell_of("a", {});
    cell.result_class = baselines::ResultClass::kProjected;
    cell.metrics = {{.name = "step_time", .value = step_ns, .unit = "ns"},
                    {.name = "exposed_comm", .value = tp, .unit = "%"},
                    {.name = "exposed_comm_tp", .value = tp, .unit = "%"},
                    {.name = "bubble", .value = bubble, .unit = "%"}};
    return cell;
  };
  const Table table = ops_table(projected(10e6, 10, 20), projected(8e6, 5, 25));
  ASSERT_EQ(table.rows.size(), 4U);
  // 7.0 -> 5.6 ms, 1.0 -> 0.4, 2.0 -> 2.0, and what they sum to.
  const std::vector<std::pair<std::string, double>> expected = {
      {"compute and waits", -1.4e6}, {"exposed TP", -0.6e6}, {"bubble", 0}, {"sum", -2e6}};
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(table.rows[i].values[0].text, expected[i].first);
    EXPECT_DOUBLE_EQ(table.rows[i].values[3].number, expected[i].second);
    if (i + 1 < expected.size()) sum += table.rows[i].values[3].number;
  }
  EXPECT_DOUBLE_EQ(sum, table.rows.back().values[3].number);
  EXPECT_EQ(table.footer[0].substr(0, 26), "Parts of two projections: ");
}

TEST(Compare, RunsWithoutACommonCellAreNotCalledEqual) {
  Pair pair = runs();
  pair.before.cells = {cell_of("a", {5'000'000}), cell_of("b", {5'000'000})};
  pair.after.cells = {cell_of("c", {5'000'000}), cell_of("d", {5'000'000})};
  EXPECT_EQ(facts_table(pair.before, pair.after).footer[0],
            "No cell is in both runs: neither knobs nor work were compared.");
}

}  // namespace
}  // namespace mbb::analysis
