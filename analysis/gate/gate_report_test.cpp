// Reports of a night as bots and CI read them: sizes, hostile text, what counts as measured.
#include "analysis/gate/gate_report.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

using baselines::Verdict;

GateRow row(const std::string& cell, const std::string& metric, Verdict verdict, const std::string& text = "") {
  GateRow r{cell, metric, "", "", {}};
  r.verdict.verdict = verdict;
  r.verdict.text = text;
  return r;
}

GateReport report_of(std::vector<GateRow> rows) {
  GateReport report;
  report.suite = "s";
  report.rows = std::move(rows);
  return report;
}

TEST(GateReport, MarkdownKeepsItsSizeAndVerdictsComeBeforeWarnings) {
  GateReport report = report_of({row("a", "step_time", Verdict::kSlower, "+3 %")});
  for (int i = 0; i < 2000; ++i) report.warnings.push_back("baseline b of cell c step_time ends in 5 days: accept one");
  const std::string text = gate_markdown(report);
  EXPECT_LE(text.size(), 60'000U);
  EXPECT_EQ(text.rfind(kGateMarker, 0), 0U);
  EXPECT_NE(text.find("| **slower** | a |"), std::string::npos);
  EXPECT_NE(text.find("ends in 5 days"), std::string::npos);
  EXPECT_NE(text.find("(cut: "), std::string::npos);
  report.warnings.resize(1);
  EXPECT_EQ(gate_markdown(report).find("(cut: "), std::string::npos);
}

TEST(GateReport, TextOfALogIsText) {
  const GateReport report =
      report_of({row("a|b", kRunRow, Verdict::kBroken, "File \"x\", in <module> <!-- mbbench gate --> a|b")});
  const std::string text = gate_markdown(report);
  EXPECT_NE(text.find("a\\|b"), std::string::npos) << text;
  EXPECT_NE(text.find("in &lt;module&gt; &lt;!-- mbbench gate --&gt;"), std::string::npos) << text;
  EXPECT_EQ(text.find(kGateMarker, 1), std::string::npos) << "one marker\n" << text;
}

TEST(GateReport, ALaunchThatSharedItsCoreIsNoValueOfTheNight) {
  baselines::Cell cell;
  cell.result_class = baselines::ResultClass::kFunctionalCpu;
  cell.ranks = 1;
  for (const bool shared : {false, true, false, false}) {
    baselines::Launch& launch = cell.launches.emplace_back();
    launch.index = static_cast<int>(cell.launches.size()) - 1;
    for (int i = 0; i < 60; ++i) {
      baselines::Step& step = launch.steps.emplace_back();
      step.index = i;
      step.wall_ns = step.cpu_ns = shared ? 6'000'000 : 4'000'000;
      step.reference_ns = shared ? 1'250'000 : 1'000'000;
    }
  }
  EXPECT_EQ(launch_values(cell, "cpu_step_ratio"), (NightLaunches{4, 4, 4}));
  EXPECT_EQ(launch_values(cell, "cpu_step_time").size(), 4U);
}

TEST(GateReport, ANightWithoutAJudgementIsAnErrorAndAnUnstableOneIsUndecided) {
  EXPECT_EQ(gate_exit_status(report_of({})), 4);
  EXPECT_EQ(gate_exit_status(report_of({row("a", kRunRow, Verdict::kInconclusive, "no number for 1 night")})), 4);
  EXPECT_EQ(gate_exit_status(report_of({row("a", kRunRow, Verdict::kUnstable)})), 2);
  EXPECT_EQ(gate_exit_status(report_of({row("a", "step_time", Verdict::kSame)})), 0);
  const auto broken = {row("a", "step_time", Verdict::kSame), row("b", kRunRow, Verdict::kBroken)};
  EXPECT_EQ(gate_exit_status(report_of(broken), {Verdict::kSlower}), 4) << "a NaN beside good cells is never green";
}

}  // namespace
}  // namespace mbb::analysis
