// Rates of a projected cell.
#include "suites/project/projected_cell.h"

#include <gtest/gtest.h>

#include "analysis/metrics/cell_metrics.h"

namespace mbb::suites {
namespace {

Projection second_of(int64_t tokens) {
  Projection p;
  p.hardware = kDefaultHardware;
  p.gpus = 2;
  p.tokens = tokens;
  p.step_ns = 1e9;
  p.low_ns = 0.9e9;
  p.high_ns = 1.1e9;
  p.model_flops_causal = p.model_flops_full = 1e12 * static_cast<double>(tokens);
  return p;
}

double metric(const baselines::Cell& cell, const char* id) {
  return analysis::find(cell, id)->value;
}

TEST(ProjectedCell, RatesAreOfTheStepsTokens) {
  baselines::Cell cell;
  fill_projected(cell, second_of(1000), false);
  EXPECT_NEAR(metric(cell, "tokens_per_second_per_gpu"), 500, 1e-9);
  EXPECT_NEAR(metric(cell, "tflops_per_gpu_causal"), 500, 1e-9);
}

TEST(ProjectedCell, PaddingIsNoThroughput) {
  baselines::Cell cell;
  cell.work.tokens_per_step = 400;  // of 1000 places the others hold padding
  cell.work.flops_per_token_causal = 1e12;
  cell.work.flops_per_token_full = 1.1e12;
  fill_projected(cell, second_of(1000), false);
  EXPECT_NEAR(metric(cell, "tokens_per_second"), 400, 1e-9);
  EXPECT_NEAR(metric(cell, "tokens_per_second_per_gpu"), 200, 1e-9);
  EXPECT_NEAR(metric(cell, "tflops_per_gpu_causal"), 200, 1e-9);
  EXPECT_NEAR(metric(cell, "tflops_per_gpu_full"), 220, 1e-9);
}

}  // namespace
}  // namespace mbb::suites
