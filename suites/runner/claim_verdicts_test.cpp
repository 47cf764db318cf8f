// Answers to claims: holds, size differs, undecided, refuted, not judged; and the verdicts that store them.
#include "suites/runner/claim_verdicts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suites/matrix/suite.h"

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

TEST(ClaimVerdicts, ProjectionsTellOnlyWhatTheyModelAndResolve) {
  const auto projected = [](const std::string& name, double ms) {
    return cell(name, ms, 6, baselines::ResultClass::kProjected);
  };
  const auto judged = [&](const Claim& c, double a, double b) {
    return judge_claim(c, {projected("a", a), projected("b", b)}, 0.04);
  };
  const auto told = [&](const Claim& c, double b) { return judged(c, 100, b).answer; };
  EXPECT_EQ(told(claim(1.0, kAny), 100.3), ClaimAnswer::kNotTold);
  EXPECT_EQ(told(claim(0, 1.0), 100.3), ClaimAnswer::kNotTold);
  EXPECT_EQ(told(claim(0, 1.0), 97), ClaimAnswer::kNotTold);
  EXPECT_EQ(told(claim(0, 1.0), 95), ClaimAnswer::kHolds) << "their intervals overlap, their ratio's error is smaller";
  EXPECT_EQ(told(claim(0, 1.0), 105), ClaimAnswer::kRefuted);
  EXPECT_EQ(told(claim(0.67, 0.83), 75), ClaimAnswer::kHolds);
  EXPECT_EQ(told(claim(0.67, 0.83), 85), ClaimAnswer::kSizeNotTold) << "the size could be as claimed";
  EXPECT_EQ(told(claim(1.2, 1.4), 118), ClaimAnswer::kSizeNotTold);
  EXPECT_EQ(told(claim(0.67, 0.83), 90), ClaimAnswer::kDirectionOnly);
  EXPECT_EQ(told(claim(0.97, 1.03), 101), ClaimAnswer::kNotTold) << "the claim is finer than the projection";
  EXPECT_EQ(told(claim(0.9, 1.1), 101), ClaimAnswer::kHolds);
  EXPECT_EQ(told(claim(0.97, 1.03), 110), ClaimAnswer::kRefuted);
  EXPECT_NE(judged(claim(0, 1.0), 100, 97).why.find("tell ratios within 4.0 %"), std::string::npos);
  // Without that figure the rows' own intervals count.
  EXPECT_EQ(judge_claim(claim(0, 1.0), {projected("a", 100), projected("b", 95)}).answer, ClaimAnswer::kNotTold);
}

TEST(ClaimVerdicts, TheSameProjectionTwiceNamesTheKnobThatIsNotModelled) {
  std::vector<baselines::Cell> cells{cell("a", 100, 6, baselines::ResultClass::kProjected),
                                     cell("b", 100, 6, baselines::ResultClass::kProjected)};
  cells[0].knobs.push_back({"overlap.margin", "0", "default", "", 0, true});
  cells[1].knobs.push_back({"overlap.margin", "16", "suite", "", 0, true});
  judge_claims({claim(0, 1.0)}, cells, 0.04);
  ASSERT_EQ(cells[1].verdicts.size(), 1U);
  EXPECT_EQ(cells[1].verdicts[0].verdict, baselines::Verdict::kInconclusive);
  EXPECT_EQ(cells[1].verdicts[0].text,
            "not told (projected): step_time 1.000, said to be below 1.00; both cells project alike: "
            "overlap.margin = 16 is not modelled. says so.");
  // A plan is exact.
  for (baselines::Cell& c : cells) c.metrics[0] = {"activation_memory", 100, NAN, NAN, "bytes", 0, ""};
  cells[1].metrics[0].value = 99;
  EXPECT_EQ(judge_claim(claim(0, 1.0, "activation_memory"), cells, 0.04).answer, ClaimAnswer::kHolds);
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

// The shipped suite of number formats: 1 % of bf16's loss is the limit, either way.
TEST(ClaimVerdicts, ARecipeThatLearnsWorseThanBf16IsTold) {
  const auto suite = open_suite("precision-cpu", {}, {}, {});
  ASSERT_TRUE(suite) << format(suite.error());
  const auto verdict_at = [&](const std::string& name, double ratio) {
    std::vector<baselines::Cell> cells;
    for (const Cell& planned : suite->cells) {
      cells.push_back(cell(planned.name, 100, 0, baselines::ResultClass::kFunctionalCpu));
      cells.back().metrics = {{.name = "final_loss", .value = planned.name == name ? 2.4 * ratio : 2.4}};
    }
    judge_claims(suite->claims, cells);
    for (const baselines::Cell& judged : cells) {
      EXPECT_EQ(judged.verdicts.size(), judged.name == "bf16" ? 0U : 1U) << judged.name;
      if (judged.name == name) return judged.verdicts.at(0).verdict;
      if (judged.name == "bf16") continue;
      EXPECT_EQ(judged.verdicts.at(0).verdict, baselines::Verdict::kSame) << judged.name;
    }
    return baselines::Verdict::kBroken;
  };
  for (const Cell& planned : suite->cells) {
    if (planned.name == "bf16") continue;
    EXPECT_EQ(verdict_at(planned.name, 1.012), baselines::Verdict::kSlower) << planned.name;
    EXPECT_EQ(verdict_at(planned.name, 0.98), baselines::Verdict::kFaster) << planned.name;
  }
}

}  // namespace
}  // namespace mbb::suites
