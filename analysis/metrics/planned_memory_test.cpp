// Metrics of a memory plan, and of the blocks alone.
#include "analysis/metrics/planned_memory.h"

#include <gtest/gtest.h>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/block_time.h"
#include "analysis/metrics/cell_metrics.h"

namespace mbb::analysis {
namespace {

TEST(PlannedMemory, IsThatOfTheFullestRankClass) {
  baselines::Cell cell;
  cell.memory = {
      {.rank_class = "stage0", .peak_bytes = 500, .categories = {{"activations", 200, -1}, {"weights", 9, -1}}},
      {.rank_class = "stage1", .peak_bytes = 700, .categories = {{"activations", 100, -1}}}};
  add_planned_memory(cell);
  EXPECT_EQ(find(cell, "peak_memory")->value, 700.0);
  EXPECT_EQ(find(cell, "activation_memory")->value, 200.0);
  add_planned_memory(cell);
  EXPECT_EQ(cell.metrics.size(), 2U) << "once";
  baselines::Cell seen;
  seen.metrics.push_back({"peak_memory", 900.0});
  seen.memory = cell.memory;
  add_planned_memory(seen);
  EXPECT_EQ(find(seen, "peak_memory")->value, 900.0) << "what was seen stays";
}

TEST(BlockTime, SumsTheBlocksComputationOfTheFullestStage) {
  baselines::Cell cell;
  baselines::Launch launch;
  launch.counts.push_back({std::string(kOpStepsCount), 2});
  const auto add = [&](const char* path, const char* stream, const char* stage, int64_t ns) {
    baselines::OpRow row;
    row.path = path;
    row.stream = stream;
    row.rank_class = stage;
    row.total_ns = ns;
    launch.ops.push_back(row);
  };
  add("layers.0.mlp.fc1.fwd", "compute", "stage0", 100);
  add("layers.0.mlp.fc1.dgrad", "compute", "stage0", 60);
  add("layers.0.mlp.fc1.all_gather", "tp", "stage0", 1000);
  add("lm_head.fwd", "compute", "stage1", 5000);
  add("encoder.layers.1.mlp.fc1.fwd", "compute", "stage1", 90);
  cell.launches.push_back(launch);
  add_block_time(cell);
  ASSERT_EQ(cell.metrics.size(), 1U);
  EXPECT_EQ(cell.metrics[0].value, 80.0);
  baselines::Cell empty;
  add_block_time(empty);
  EXPECT_TRUE(empty.metrics.empty());
}

}  // namespace
}  // namespace mbb::analysis
