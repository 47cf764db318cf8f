// A cell that nothing was compared with has a word of its own, in its row and in the counts.
#include "analysis/report/suite_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mbb::analysis {
namespace {

TEST(SuiteTable, WhatNobodyComparedIsUnprovenAndNotOk) {
  baselines::Cell one, same, alone, broken;
  one.name = "one";
  same.name = "tp2";
  same.verdicts.push_back({.subject = "loss", .verdict = baselines::Verdict::kSame});
  alone.name = "pp2";
  alone.verdicts.push_back({.subject = "loss", .verdict = baselines::Verdict::kIncomparable});
  broken = alone;
  broken.name = "dp2";
  broken.status = baselines::CellStatus::kBroken;
  const Table table = suite_table(std::vector{one, same, alone, broken});
  ASSERT_EQ(table.rows.size(), 4U);
  EXPECT_EQ(table.rows[0].values[1].text, "ok");
  EXPECT_EQ(table.rows[1].values[1].text, "ok");
  EXPECT_EQ(table.rows[2].values[1].text, "unproven");
  EXPECT_EQ(table.rows[3].values[1].text, "broken");
  EXPECT_EQ(status_word(alone), "unproven");
  EXPECT_EQ(status_word(broken), "broken");
  ASSERT_FALSE(table.footer.empty());
  EXPECT_EQ(table.footer[0], "2 ok, 1 unproven, 1 broken.");
  const auto explains = [](const std::string& line) { return line.starts_with("unproven: "); };
  EXPECT_EQ(std::count_if(table.footer.begin(), table.footer.end(), explains), 1);
  const Table proven = suite_table(std::vector{one, same});
  EXPECT_EQ(proven.footer[0], "2 ok, 0 broken.");
  EXPECT_EQ(std::count_if(proven.footer.begin(), proven.footer.end(), explains), 0);
}

TEST(SuiteTable, TheFooterSaysTheErrorOfTheseRows) {
  const auto projected = [](const char* name, double error) {
    baselines::Cell cell;
    cell.name = name;
    cell.result_class = baselines::ResultClass::kProjected;
    cell.metrics.push_back({"published_error", error, error - 6, error + 6, "%", 0, ""});
    return cell;
  };
  baselines::Cell skipped = projected("skipped", 90), measured = projected("measured", 80);
  skipped.status = baselines::CellStatus::kSkipped;
  measured.result_class = baselines::ResultClass::kMeasured;
  const Table table =
      suite_table(std::vector{projected("a", 5), projected("b", -20), projected("c", 9), skipped, measured});
  const auto line = std::find_if(table.footer.begin(), table.footer.end(),
                                 [](const std::string& l) { return l.starts_with("Of these rows"); });
  ASSERT_NE(line, table.footer.end());
  EXPECT_EQ(
      *line,
      "Of these rows 3 have a published step of that mapping: the projected step is off by 9.0 % (median), at worst "
      "-20.0 % (b), too long in 2; 1 of 3 published steps lie inside the row's ±.");
}

}  // namespace
}  // namespace mbb::analysis
