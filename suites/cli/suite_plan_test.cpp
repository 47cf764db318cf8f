// The plan of a suite: classes, time, GPU-hours, what does not fit, and what the store remembers.
#include "suites/cli/suite_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "baselines/store/store.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

const char* const kSuite = R"(purpose = "A plan."
[base]
train_iters = 100
[[cell]]
name = "here"
set = { tp = 2 }
[[cell]]
name = "there"
set = { model = "llama3-8b", num_layers = 8, gpus = 4096, tp = 2, device = "cuda", data.kind = "synthetic", recipe = "bf16", seq_length = 8192, global_batch_size = 4096 }
[[cell]]
name = "clocks"
set = { vboost = 1 }
)";

class SuitePlan : public testing::Test {
 protected:
  void SetUp() override {
    options_.runs_dir = fs::path(testing::TempDir()) / ("mbbench_plan_" + std::to_string(getpid()));
    fs::remove_all(options_.runs_dir);
    options_.launches = 2;
    options_.project = [](const ProjectionRequest&, baselines::Cell& cell, ProjectionBasis&) -> Status {
      cell.metrics = {{"step_time", 3.6e9}};
      return {};
    };
    suite_ = parse_suite(kSuite, "p.toml", {}, {}, {});
    ASSERT_TRUE(suite_) << format(suite_.error());
  }
  void TearDown() override { fs::remove_all(options_.runs_dir); }

  RunOptions options_;
  Result<Suite> suite_ = fail(ErrorCode::kNotFound, "");
};

std::string text(const analysis::Row& row, size_t column) {
  return row.values.at(column).text;
}

TEST_F(SuitePlan, SaysWhatRunsWhereAndForHowLong) {
  const auto plan = plan_of_suite(*suite_, options_);
  ASSERT_TRUE(plan) << format(plan.error());
  ASSERT_EQ(plan->table.rows.size(), 3U);
  EXPECT_EQ(text(plan->table.rows[0], 2), "functional/cpu");
  EXPECT_EQ(text(plan->table.rows[0], 4), "-") << "has not run yet";
  EXPECT_EQ(text(plan->table.rows[0], 6), "2 launches of 100 steps");
  EXPECT_EQ(text(plan->table.rows[1], 1), "4096");
  EXPECT_EQ(text(plan->table.rows[1], 2), "projected");
  EXPECT_EQ(plan->table.rows[1].values[4].number, 720.0) << "100 steps of 3.6 s, twice";
  EXPECT_EQ(text(plan->table.rows[1], 5), "819.20");
  EXPECT_EQ(text(plan->table.rows[1], 6), "project, and train its twin");
  EXPECT_EQ(text(plan->table.rows[2], 6), "skipped: host.vboost = 1 changes clocks, which needs --allow-clock-changes");
  EXPECT_NE(plan->table.footer[0].find("2 of 3 cells run"), std::string::npos) << plan->table.footer[0];
  EXPECT_NE(plan->table.footer[0].find("819.2 GPU-hours where the GPUs they ask for are; 1 have not run yet"),
            std::string::npos)
      << plan->table.footer[0];
}

TEST_F(SuitePlan, TakesTheStepAsItRanLast) {
  const std::vector<baselines::Cell> cells = describe_cells(*suite_, options_);
  baselines::Run run;
  run.id = "r-1";
  run.planned_cells = {"here"};
  baselines::Cell ran = cells[0];
  ran.run = run.id;
  ran.metrics.push_back({"step_time", 50e6, 49e6, 51e6, "ns", 1, ""});
  fs::create_directories(options_.runs_dir);
  auto store = baselines::Store::open(store_file(options_.runs_dir));
  ASSERT_TRUE(store) << format(store.error());
  ASSERT_TRUE(store->put_run(run, "x"));
  ASSERT_TRUE(store->put_cell(ran));
  const auto plan = plan_of_suite(*suite_, options_);
  ASSERT_TRUE(plan) << format(plan.error());
  EXPECT_EQ(plan->table.rows[0].values[4].number, 10.0) << "100 steps of 50 ms, twice";
  EXPECT_EQ(text(plan->table.rows[0], 5), "-") << "no GPU";
}

}  // namespace
}  // namespace mbb::suites
