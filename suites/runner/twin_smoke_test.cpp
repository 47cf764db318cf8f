// Suites of cells whose GPUs are not here, end to end: projected rows, twins that train, claims, manifest.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/report/suite_table.h"
#include "profiler/host/gpus.h"
#include "suites/runner/runner.h"
#include "suites/runner/twin_run.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

const char* const kSuite = R"(purpose = "Cells of GPUs that are not here."
model = "llama3-8b"
gpus = 4096
[base]
device = "cuda"
data.kind = "synthetic"
recipe = "bf16"
num_layers = 8
seq_length = 8192
global_batch_size = 8192
overlap_grad_reduce = true
overlap_param_gather = true
[[cell]]
name = "tp2-pp2"
set = { tp = 2, pp = 2, vpp = 2 }
[[cell]]
name = "tp2-pp2-fp8"
set = { tp = 2, pp = 2, vpp = 2, recipe = "fp8_current" }
[[cell]]
name = "too-large"
set = { model = "llama3-70b", num_layers = 80 }
[[cell]]
name = "unknown"
set = { tp = 2, recipe = "nvfp4" }
[[claim]]
name = "fp8"
says = "FP8 is faster."
source = "a test"
a = "tp2-pp2"
b = "tp2-pp2-fp8"
metric = "step_time"
ratio = [0.6, 0.9]
)";

class TwinSmoke : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("mbbench_twins_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    options_.command = "suite";
    options_.argv = {"mbbench", "suite"};
    options_.runs_dir = folder_;
    options_.program = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
    options_.quiet = true;
    options_.project = [](const ProjectionRequest& request, baselines::Cell& cell, ProjectionBasis& basis) -> Status {
      EXPECT_EQ(request.hardware, "h100-sxm");
      EXPECT_FALSE(request.blocks);
      const double step = request.layout.config.precision.recipe == trainer::Recipe::kBf16 ? 10e9 : 8e9;
      cell.metrics = {{"step_time", step, 0.95 * step, 1.05 * step, "ns", 0, "80 % of something"},
                      {"exposed_comm", 4.0}};
      basis.lines = {"Projection: a test."};
      return {};
    };
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  Suite suite(const std::string& text = kSuite) const {
    auto parsed = parse_suite(text, "t.toml", {}, {}, {});
    EXPECT_TRUE(parsed) << format(parsed.error());
    return std::move(*parsed);
  }

  fs::path folder_;
  RunOptions options_;
};

const baselines::Cell& cell(const RunOutcome& outcome, const std::string& name) {
  for (const baselines::Cell& c : outcome.run.cells)
    if (c.name == name) return c;
  throw std::runtime_error("no cell " + name);
}

TEST_F(TwinSmoke, MissingGpusGiveProjectedRowsWithTwins) {
  const auto outcome = start_run(suite(), options_);
  ASSERT_TRUE(outcome) << format(outcome.error());
  EXPECT_EQ(exit_status(*outcome, false), 0);
  EXPECT_TRUE(missing_results(outcome->run).empty());
  const baselines::Cell& first = cell(*outcome, "tp2-pp2");
  EXPECT_EQ(first.status, baselines::CellStatus::kOk) << first.reason;
  EXPECT_EQ(class_label(first), "projected");
  EXPECT_EQ(first.proxy_of, "llama3-8b");
  EXPECT_TRUE(first.launches.empty());
  EXPECT_EQ(analysis::find(first, "step_time")->value, 10e9);
  EXPECT_NE(analysis::find(first, "peak_memory"), nullptr);
  ASSERT_EQ(first.verdicts.size(), 1U);
  EXPECT_EQ(first.verdicts[0].subject, kTwinSubject);
  EXPECT_EQ(first.verdicts[0].verdict, baselines::Verdict::kSame) << first.verdicts[0].text;
  EXPECT_NE(first.verdicts[0].text.find("64 ranks: dp 1024 → 16"), std::string::npos) << first.verdicts[0].text;
  // The FP8 cell has the same structure: its twin is remembered.
  EXPECT_EQ(std::distance(fs::directory_iterator(outcome->bundle / "twins"), fs::directory_iterator()), 2);
  const baselines::Cell& fp8 = cell(*outcome, "tp2-pp2-fp8");
  ASSERT_EQ(fp8.verdicts.size(), 2U);
  EXPECT_EQ(fp8.verdicts[1].subject, "claim fp8");
  EXPECT_EQ(fp8.verdicts[1].verdict, baselines::Verdict::kSame) << fp8.verdicts[1].text;
  const baselines::Cell& large = cell(*outcome, "too-large");
  EXPECT_EQ(large.status, baselines::CellStatus::kSkipped);
  EXPECT_FALSE(large.memory.empty()) << "its plan stays, to look at";
  EXPECT_NE(large.reason.find("GiB"), std::string::npos) << large.reason;
  EXPECT_EQ(cell(*outcome, "unknown").reason, "h100-sxm has no nvfp4, and emulated steps are not projected");
  EXPECT_EQ(outcome->basis.lines, std::vector<std::string>{"Projection: a test."});
  const analysis::Table table = analysis::suite_table(outcome->run);
  EXPECT_EQ(table.columns[10].id, "twin");
  EXPECT_EQ(table.rows[0].values[10].text, "ok");
}

TEST_F(TwinSmoke, WhatIsRequiredToBeMeasuredIsNotProjected) {
  options_.require_measured = true;
  const auto outcome = start_run(suite(), options_);
  ASSERT_TRUE(outcome) << format(outcome.error());
  EXPECT_EQ(cell(*outcome, "tp2-pp2").status, baselines::CellStatus::kSkipped);
  EXPECT_EQ(exit_status(*outcome, true), 4);
}

TEST_F(TwinSmoke, ATwinThatTrainsOtherwiseBreaksItsCell) {
  trainer::Config c;
  c.model.name = "mixtral-8x7b";
  c.model.num_layers = 2;
  c.parallel.gpus = 2;
  c.parallel.expert_model_parallel_size = 2;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.train.seq_length = 4096;
  auto twin = twin_of(c);
  ASSERT_TRUE(twin) << format(twin.error());
  TwinRunner twins(folder_, options_, {});
  // As under torchrun, whose other rank will not come to meet the twin's.
  const std::map<const char*, const char*> launched{{"RANK", "0"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"LOCAL_RANK", "0"},
                                                    {"LOCAL_WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", "1"}};
  for (const auto& [name, value] : launched) setenv(name, value, 1);
  const auto same = twins.run(*twin);
  for (const auto& [name, value] : launched) unsetenv(name);
  ASSERT_TRUE(same && *same) << format(same.error());
  EXPECT_EQ((*same)->verdict, baselines::Verdict::kSame) << (*same)->text;
  // Balancing losses are of a micro-batch: another size trains another model.
  twin->mapped.train.micro_batch_size = 1;
  twin->mapped_hash += "x";
  const auto other = twins.run(*twin);
  ASSERT_TRUE(other && *other);
  EXPECT_EQ((*other)->verdict, baselines::Verdict::kBroken);
  EXPECT_EQ(twins.trained(), 2);
  baselines::Cell broken;
  add_twin_verdict(broken, *twin, **other);
  EXPECT_EQ(broken.status, baselines::CellStatus::kBroken);
  // A child that fails is a broken twin, with what it said.
  twin->mapped.train.seq_length = 7;
  twin->mapped.parallel.gpus = 3;
  twin->mapped_hash += "x";
  const auto failed = twins.run(*twin);
  ASSERT_TRUE(failed && *failed);
  EXPECT_EQ((*failed)->verdict, baselines::Verdict::kBroken);
  EXPECT_NE((*failed)->text.find("parallel.gpus = 3"), std::string::npos) << (*failed)->text;
}

TEST_F(TwinSmoke, AStopWhileATwinTrainsLeavesARunToResume) {
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  const CellProjector project = options_.project;
  options_.project = [&](const ProjectionRequest& request, baselines::Cell& cell, ProjectionBasis& basis) {
    stop = true;  // its twin is next
    return project(request, cell, basis);
  };
  const auto outcome = start_run(suite(), options_);
  ASSERT_TRUE(outcome) << format(outcome.error());
  EXPECT_TRUE(outcome->stopped);
  EXPECT_EQ(exit_status(*outcome, false), 75);
  EXPECT_TRUE(outcome->run.cells.empty()) << "the cell whose twin was cut off is not finished";
  stop = false;
  options_.project = project;
  const auto resumed = resume_run(outcome->bundle, suite(), options_);
  ASSERT_TRUE(resumed) << format(resumed.error());
  EXPECT_EQ(exit_status(*resumed, false), 0);
  EXPECT_EQ(resumed->run.cells.size(), 4U);
}

TEST_F(TwinSmoke, ARunWhoseSuiteLostACellIsNotResumed) {
  options_.twins = false;
  const auto outcome = start_run(suite(), options_);
  ASSERT_TRUE(outcome) << format(outcome.error());
  std::string fewer = kSuite;
  fewer.replace(fewer.find("name = \"unknown\""), 16, "name = \"renamed\"");
  fs::remove_all(outcome->bundle / "cells" / "unknown");
  const auto resumed = resume_run(outcome->bundle, suite(fewer), options_);
  ASSERT_FALSE(resumed);
  EXPECT_NE(resumed.error().what.find("planned a cell 'unknown'"), std::string::npos) << resumed.error().what;
}

TEST(Manifest, MissingCellsAndNumbersAreNamed) {
  baselines::Run run;
  run.planned_cells = {"a", "b"};
  baselines::Cell a;
  a.name = "a";
  run.cells.push_back(a);
  EXPECT_EQ(missing_results(run),
            (std::vector<std::string>{"cell a is ok and has no step time", "cell b has no result"}));
  RunOutcome outcome;
  outcome.run = run;
  EXPECT_EQ(exit_status(outcome, false), 4);
  outcome.stopped = true;
  EXPECT_EQ(exit_status(outcome, false), 75);
}

}  // namespace
}  // namespace mbb::suites
