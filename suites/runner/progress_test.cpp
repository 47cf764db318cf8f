// What is said of a cell when it ends.
#include "suites/runner/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace mbb::suites {
namespace {

TEST(Progress, CellsThatTakeTurnsAreToldTheTimeOfAllTheirTurns) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress(2, false);
    progress.begin_cell("a");
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    progress.begin_cell("b");
    progress.begin_cell("a");  // settled after the other's turn
    progress.end_cell("ok");
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("[1/2] a  ok  "), std::string::npos) << said;
  EXPECT_NE(said.find(" ms"), std::string::npos) << said;  // not the nanoseconds since the last turn began
}

}  // namespace
}  // namespace mbb::suites
