// What the capture table says of counts that launches left.
#include "suites/cli/launch_tables.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

baselines::Run with_counts(std::vector<baselines::NamedCount> counts) {
  baselines::Run run;
  baselines::Cell cell;
  cell.name = "one";
  cell.launches.emplace_back();
  cell.launches[0].counts = std::move(counts);
  run.cells = {cell};
  return run;
}

TEST(CaptureTable, SaysWhatShareOfTheDevicesTimeHasNoOp) {
  const auto table = capture_table(with_counts({{"captured_device_events", 200},
                                                {"captured_device_ns", 4'000'000},
                                                {"unattributed_device_ns", 1'000'000},
                                                {"capture_dropped_records", 3}}),
                                   "");
  ASSERT_EQ(table.rows.size(), 1U);
  const auto& cells = table.rows[0].values;
  EXPECT_EQ(cells[2].text, "200");
  EXPECT_EQ(cells[4].text, "25.00 %");
  EXPECT_EQ(cells[5].text, "3");
  EXPECT_EQ(cells[6].text, "-");
}

TEST(CaptureTable, SaysWhyAWindowWasNotCaptured) {
  const auto run = with_counts({{"capture: timed op by op: CUPTI is held by Nsight Compute", 1}});
  const auto table = capture_table(run, "one");
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0].values[2].text, "-");
  EXPECT_EQ(table.rows[0].values[6].text, "timed op by op: CUPTI is held by Nsight Compute");
  EXPECT_TRUE(capture_table(run, "another").rows.empty());
  EXPECT_TRUE(capture_table(with_counts({{"telemetry_samples", 9}}), "").rows.empty());
}

TEST(CaptureTable, SaysHowWellTheRanksClocksBecameOne) {
  const auto table = capture_table(with_counts({{"captured_device_events", 200},
                                                {"capture: clock of rank 0, shifted by ns", 0},
                                                {"capture: clock of rank 1, shifted by ns", -442},
                                                {"capture: ends of comm.tp 0,1 apart, median ns", 193},
                                                {"capture: ends of comm.tp 0,1 apart, largest ns", 2'426'742},
                                                {"capture: ends of comm.pp 0,3 apart, median ns", 1'500},
                                                {"capture: rank 3 shares no collective and keeps its clock", 1}}),
                                   "");
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0].values[6].text,
            "rank 3 shares no collective and keeps its clock; clocks of 2 ranks shifted by at most 442 ns; ends apart, "
            "median: comm.tp 0,1 193 ns, comm.pp 0,3 1.50 us");
}

TEST(CaptureTable, OfManyCommunicatorsTheWorstAreNamed) {
  std::vector<baselines::NamedCount> counts{{"capture: clock of rank 0, shifted by ns", 0},
                                            {"capture: clock of rank 1, shifted by ns", 5}};
  for (int i = 0; i < 8; ++i)
    counts.push_back(
        {"capture: ends of comm.tp " + std::to_string(2 * i) + "," + std::to_string(2 * i + 1) + " apart, median ns",
         100 + i});
  const auto table = capture_table(with_counts(counts), "");
  ASSERT_EQ(table.rows.size(), 1U);
  const std::string& note = table.rows[0].values[6].text;
  EXPECT_NE(note.find("median: comm.tp 14,15 107 ns, comm.tp 12,13 106 ns"), std::string::npos) << note;
  EXPECT_NE(note.find("comm.tp 4,5 102 ns, 2 more at most as much"), std::string::npos) << note;
}

}  // namespace
}  // namespace mbb::suites
