// Cells that end in a check of our own are found by their number and the check's words; the others are not touched.
#include "suites/runner/plan_probe.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "profiler/base/check.h"

namespace mbb::suites {
namespace {

std::vector<std::string> failures(size_t count, const std::function<void(size_t)>& work) {
  PlanProbe probe(count, work);
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) all.push_back(probe.failure(i));
  return all;
}

TEST(PlanProbe, FindsTheCellsThatFailACheckAndGoesOnBehindThem) {
  const auto found = failures(5, [](size_t i) {
    MB_CHECK(i != 1, "the second cell is wrong");
    if (i == 4) raise(SIGKILL);
  });
  ASSERT_EQ(found.size(), 5U);
  EXPECT_NE(found[1].find("the second cell is wrong"), std::string::npos) << found[1];
  EXPECT_NE(found[1].find("plan_probe_test.cpp"), std::string::npos) << found[1];
  EXPECT_EQ(found[1].find('\n'), std::string::npos) << "a line of a table";
  EXPECT_EQ(found[4], "planning it ended by signal 9");
  for (const size_t good : {0, 2, 3}) EXPECT_EQ(found[good], "") << good;
}

TEST(PlanProbe, FindsNothingWhereAllIsWell) {
  EXPECT_EQ(failures(3, [](size_t) {}), std::vector<std::string>(3));
  EXPECT_EQ(failures(0, [](size_t) {}), std::vector<std::string>());
}

TEST(PlanProbe, MayBeGivenUpEarly) {
  PlanProbe probe(1000, [](size_t) {});
  EXPECT_EQ(probe.failure(0), "");
}

}  // namespace
}  // namespace mbb::suites
