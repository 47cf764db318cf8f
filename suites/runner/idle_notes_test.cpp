// Knobs that do nothing are told once each: what resolving a cell says, and what its launch found.
#include "suites/runner/idle_notes.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

TEST(IdleNotes, AreOfTheLayoutAndOfTheLaunch) {
  Suite suite;
  for (const char* name : {"one", "two"}) {
    Cell cell;
    cell.name = name;
    cell.config.overlap.overlap_p2p_comm = true;
    suite.cells.push_back(cell);
  }
  const std::string p2p = "overlap.overlap_p2p_comm = true (needs pp > 1, or an encoder with GPUs of its own)";
  EXPECT_EQ(idle_notes(suite), (std::vector<std::string>{"no effect: " + p2p + " in one, two."}));
  baselines::Cell ran;
  ran.name = "two";
  ran.launches.emplace_back();
  for (const std::string& count : {std::string(kIdleCount) + p2p, std::string(kIdleCount) + "fusion.x = true (needs y)",
                                   std::string("sequences dropped")})
    ran.launches.front().counts.push_back({count, 1});
  EXPECT_EQ(idle_notes(suite, {ran}), (std::vector<std::string>{"no effect: " + p2p + " in one, two.",
                                                                "no effect: fusion.x = true (needs y) in two."}));
}

TEST(IdleNotes, NameWhatAProjectionLeavesOut) {
  Suite suite;
  for (const char* name : {"graphs", "no-graphs"}) {
    Cell cell;
    cell.name = name;
    cell.config.host.device = trainer::Device::kCuda;
    cell.config.host.enable_cuda_graph = cell.name == "graphs";
    suite.cells.push_back(cell);
  }
  baselines::Cell done;
  done.name = "no-graphs";
  done.result_class = baselines::ResultClass::kProjected;
  EXPECT_EQ(
      idle_notes(suite, {done}),
      std::vector<std::string>{"not projected, the time is as without: host.enable_cuda_graph = false in no-graphs."});
  done.result_class = baselines::ResultClass::kMeasured;
  EXPECT_TRUE(idle_notes(suite, {done}).empty());
}

}  // namespace
}  // namespace mbb::suites
