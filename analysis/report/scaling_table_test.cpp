// Which cells scale together, and their efficiencies.
#include "analysis/report/scaling_table.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

baselines::Cell cell_of(const char* name, int gpus, int batch, double rate, const char* recipe = "bf16") {
  baselines::Cell cell;
  cell.name = name;
  cell.gpus = gpus;
  cell.result_class = baselines::ResultClass::kProjected;
  cell.knobs = {{"parallel.gpus", std::to_string(gpus), "suite", "", 0, true},
                {"precision.recipe", recipe, "suite", "", 0, true},
                {"train.global_batch_size", std::to_string(batch), "suite", "", 0, true}};
  cell.metrics.push_back({"tokens_per_second_per_gpu", rate});
  return cell;
}

TEST(ScalingTable, StrongAndWeakAreHeldAgainstTheFewestGpus) {
  baselines::Run run;
  run.cells = {cell_of("more", 16, 32, 900), cell_of("few", 8, 32, 1000), cell_of("wide", 32, 128, 950),
               cell_of("fp8", 64, 256, 2000, "fp8_current")};
  const auto table = scaling_table(run);
  ASSERT_TRUE(table);
  ASSERT_EQ(table->rows.size(), 4U) << "the FP8 cell has no other of its kind";
  const auto text = [&](size_t row, size_t column) { return table->rows[row].values[column].text; };
  EXPECT_EQ(text(0, 0) + " " + text(0, 1) + " " + text(0, 6), "strong few 100.0 %");
  EXPECT_EQ(text(1, 0) + " " + text(1, 1) + " " + text(1, 6), "strong more 90.0 %");
  EXPECT_EQ(text(2, 0) + " " + text(2, 1) + " " + text(2, 6), "weak few 100.0 %");
  EXPECT_EQ(text(3, 0) + " " + text(3, 1) + " " + text(3, 6), "weak wide 95.0 %");
}

TEST(ScalingTable, CpuRanksAndSingleCellsScaleNothing) {
  baselines::Run run;
  run.cells = {cell_of("few", 8, 32, 1000), cell_of("more", 16, 32, 900)};
  run.cells[1].result_class = baselines::ResultClass::kFunctionalCpu;
  EXPECT_FALSE(scaling_table(run));
  run.cells[1].result_class = baselines::ResultClass::kMeasured;
  EXPECT_FALSE(scaling_table(run)) << "classes never mix";
}

}  // namespace
}  // namespace mbb::analysis
