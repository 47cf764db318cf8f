// A rate above the peak of the fastest format of a run breaks its cell, and no other rate does.
#include "suites/runner/possible_rate.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

using baselines::CellStatus;
using trainer::Recipe;

baselines::Cell judged(const char* metric, double tflops, std::optional<Recipe> recipe,
                       const char* device = "NVIDIA H100 80GB HBM3") {
  baselines::Cell cell;
  cell.device = device;
  cell.metrics.push_back({.name = metric, .value = tflops, .unit = "TFLOP/s"});
  judge_rate(recipe, cell);
  return cell;
}

TEST(PossibleRate, ThePeakIsThatOfTheFastestFormatTheRunUsed) {
  const auto status = [](double tflops, std::optional<Recipe> recipe, const char* device = "NVIDIA H100 80GB HBM3") {
    return judged("tflops_per_gpu_causal", tflops, recipe, device).status;
  };
  EXPECT_EQ(status(989, Recipe::kBf16), CellStatus::kOk);
  EXPECT_EQ(status(990, Recipe::kBf16), CellStatus::kBroken);
  EXPECT_EQ(status(990, Recipe::kFp32), CellStatus::kBroken);
  EXPECT_EQ(status(1200, Recipe::kFp8Current), CellStatus::kOk) << "fp8 may pass the bf16 peak";
  EXPECT_EQ(status(1980, Recipe::kFp8Current), CellStatus::kBroken);
  EXPECT_EQ(status(1200, std::nullopt), CellStatus::kOk) << "the recipe is not known";
  EXPECT_EQ(status(1980, std::nullopt), CellStatus::kBroken);
  EXPECT_EQ(status(5000, Recipe::kFp8Blockwise, "NVIDIA B200"), CellStatus::kBroken);
  EXPECT_EQ(status(5000, Recipe::kNvfp4, "NVIDIA B200"), CellStatus::kOk);
  EXPECT_EQ(status(400, Recipe::kFp8Current, "NVIDIA A100-SXM4-80GB"), CellStatus::kBroken) << "no fp8 units";
  EXPECT_EQ(status(1e6, Recipe::kBf16, "a device that nobody knows"), CellStatus::kOk);
}

TEST(PossibleRate, TheReasonHasTheNumbers) {
  const baselines::Cell cell = judged("tflops_per_gpu_causal", 13493, Recipe::kBf16);
  EXPECT_NE(cell.reason.find("13493.0 TFLOP/s/GPU are 1363.8 % of the 989.4"), std::string::npos) << cell.reason;
}

TEST(PossibleRate, ALogsOwnCountMayBeOfFullAttention) {
  EXPECT_EQ(judged("logged_tflops_per_gpu", 1900, Recipe::kBf16).status, CellStatus::kOk);
  EXPECT_EQ(judged("logged_tflops_per_gpu", 1990, Recipe::kBf16).status, CellStatus::kBroken);
}

TEST(PossibleRate, AVerdictThatStandsIsKept) {
  baselines::Cell cell;
  cell.device = "NVIDIA H100 80GB HBM3";
  cell.status = CellStatus::kUnstable;
  cell.reason = "did not settle";
  cell.metrics.push_back({.name = "tflops_per_gpu_causal", .value = 1e6, .unit = "TFLOP/s"});
  judge_rate(Recipe::kBf16, cell);
  EXPECT_EQ(cell.status, CellStatus::kUnstable);
}

}  // namespace
}  // namespace mbb::suites
