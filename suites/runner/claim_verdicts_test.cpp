// Answers to claims: holds, size differs, undecided, refuted, not judged; and the verdicts that store them.
#include "suites/runner/claim_verdicts.h"

#include <gtest/gtest.h>

#include <limits>

namespace mbb::suites {
namespace {

constexpr double kAny = std::numeric_limits<double>::infinity();

baselines::Cell cell(const std::string& name, double ms, double half = 0,
                     baselines::ResultClass result_class = baselines::ResultClass::kMeasured) {
  baselines::Cell c;
  c.name = name;
  c.result_class = result_class;
  c.device = "NVIDIA H100 80GB HBM3";
  const double none = baselines::kNotMeasured;
  c.metrics.push_back({"step_time", ms, half > 0 ? ms - half : none, half > 0 ? ms + half : none, "ns", 5, ""});
  return c;
}

Claim claim(double low, double high, const std::string& metric = "step_time") {
  return {"c", "says so.", "guide", "a", "b", metric, low, high};
}

ClaimAnswer answer(const Claim& c, const baselines::Cell& a, const baselines::Cell& b) {
  return judge_claim(c, {a, b}).answer;
}

TEST(ClaimVerdicts, ARatioIsHeldAgainstItsRange) {
  EXPECT_EQ(answer(claim(0.7, 0.85), cell("a", 100), cell("b", 80)), ClaimAnswer::kHolds);
  EXPECT_EQ(answer(claim(0.7, 0.85), cell("a", 100), cell("b", 95)), ClaimAnswer::kDirectionOnly);
  EXPECT_EQ(answer(claim(0.7, 0.85), cell("a", 100), cell("b", 60)), ClaimAnswer::kDirectionOnly);
  EXPECT_EQ(answer(claim(0.7, 0.85), cell("a", 100), cell("b", 110)), ClaimAnswer::kRefuted);
  EXPECT_EQ(answer(claim(1.0, kAny), cell("a", 100), cell("b", 110)), ClaimAnswer::kHolds);
  EXPECT_EQ(answer(claim(1.0, kAny), cell("a", 100), cell("b", 99)), ClaimAnswer::kRefuted);
  EXPECT_EQ(answer(claim(0, 1.0), cell("a", 100), cell("b", 100)), ClaimAnswer::kRefuted);
  EXPECT_EQ(answer(claim(1.0, kAny), cell("a", 100), cell("b", 100)), ClaimAnswer::kRefuted);
  EXPECT_EQ(answer(claim(0.97, 1.03), cell("a", 100), cell("b", 101)), ClaimAnswer::kHolds);
  EXPECT_EQ(answer(claim(0.97, 1.03), cell("a", 100), cell("b", 90)), ClaimAnswer::kRefuted);
}

TEST(ClaimVerdicts, AnIntervalAcrossOneDecidesNothing) {
  EXPECT_EQ(answer(claim(0, 1.0), cell("a", 100, 2), cell("b", 99, 2)), ClaimAnswer::kUndecided);
  EXPECT_EQ(answer(claim(0, 1.0), cell("a", 100, 2), cell("b", 101, 2)), ClaimAnswer::kUndecided);
  EXPECT_EQ(answer(claim(0, 1.0), cell("a", 100, 2), cell("b", 90, 2)), ClaimAnswer::kHolds);
  EXPECT_EQ(answer(claim(0.97, 1.03), cell("a", 100, 1), cell("b", 101, 1)), ClaimAnswer::kHolds);
}

TEST(ClaimVerdicts, ClassesAndMissingNumbersAreNotCompared) {
  const auto projected =
      judge_claim(claim(0, 1), {cell("a", 100), cell("b", 90, 0, baselines::ResultClass::kProjected)});
  EXPECT_EQ(projected.answer, ClaimAnswer::kNotJudged);
  EXPECT_EQ(projected.why, "a is measured/NVIDIA H100 80GB HBM3 and b is projected");
  baselines::Cell skipped = cell("b", 90);
  skipped.status = baselines::CellStatus::kSkipped;
  skipped.reason = "needs 64 GPUs";
  EXPECT_EQ(judge_claim(claim(0, 1), {cell("a", 100), skipped}).why, "b is skipped: needs 64 GPUs");
  EXPECT_EQ(judge_claim(claim(0, 1, "bubble"), {cell("a", 100), cell("b", 90)}).why, "a has no bubble");
  EXPECT_EQ(judge_claim(claim(0, 1), {cell("a", 100)}).why, "b is not in this run");
}

TEST(ClaimVerdicts, TheVerdictSaysWhetherItIsAsClaimedAndJudgingAgainReplacesIt) {
  std::vector<baselines::Cell> cells{cell("a", 100), cell("b", 60), cell("other", 1)};
  EXPECT_EQ(judge_claims({claim(0.7, 0.85)}, cells), std::vector<size_t>{1});
  EXPECT_EQ(judge_claims({claim(0.7, 0.85)}, cells), std::vector<size_t>{1});
  ASSERT_EQ(cells[1].verdicts.size(), 1U);
  const baselines::VerdictRow& row = cells[1].verdicts[0];
  EXPECT_EQ(row.subject, "claim c");
  EXPECT_EQ(row.verdict, baselines::Verdict::kFaster) << "than claimed";
  EXPECT_NEAR(row.change, -0.4, 1e-12);
  EXPECT_EQ(row.text,
            "direction holds, size differs (measured/NVIDIA H100 80GB HBM3): step_time 0.600, said to be 0.70 to 0.85. "
            "says so.");
  cells[1].metrics[0].value = 80;
  judge_claims({claim(0.7, 0.85)}, cells);
  EXPECT_EQ(cells[1].verdicts[0].verdict, baselines::Verdict::kSame);
  cells[1].metrics[0].value = 120;
  judge_claims({claim(0.7, 0.85)}, cells);
  EXPECT_EQ(cells[1].verdicts[0].verdict, baselines::Verdict::kSlower);
}

}  // namespace
}  // namespace mbb::suites
