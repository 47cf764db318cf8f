// Axis ticks: round, inside the range, in the unit a person would choose.
#include "viewer/widgets/plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::viewer {
namespace {

TEST(Ticks, DurationsPickTheirUnit) {
  const Ticks ticks = axis_ticks({0, 100e6}, 5, "ns");
  EXPECT_EQ(ticks.unit, "ms");
  ASSERT_EQ(ticks.ticks.size(), 6U);
  EXPECT_EQ(ticks.ticks[1].label, "20");
  EXPECT_DOUBLE_EQ(ticks.ticks[1].at, 20e6);
  EXPECT_EQ(axis_ticks({0, 3e9}, 4, "ns").unit, "s");
  EXPECT_EQ(axis_ticks({0, 900}, 4, "ns").unit, "ns");
}

TEST(Ticks, FineRangesKeepTheirDigits) {
  const Ticks ticks = axis_ticks({20.1e6, 20.2e6}, 4, "ns");
  ASSERT_GE(ticks.ticks.size(), 3U);
  EXPECT_NE(ticks.ticks[0].label, ticks.ticks[1].label);
}

TEST(Ticks, StayInsideAndBoundedOnAnyRange) {
  for (const double low : {-1e18, -3.0, 0.0, 7.5, 1e15}) {
    for (const double length : {1e-9, 1e-3, 1.0, 17.0, 1e6, 1e18}) {
      const Range range{low, low + length};
      if (!(range.high > range.low)) continue;
      const Ticks ticks = axis_ticks(range, 6, "");
      EXPECT_LE(ticks.ticks.size(), 64U);
      for (const Tick& tick : ticks.ticks) {
        EXPECT_GE(tick.at, range.low - length * 0.01);
        EXPECT_LE(tick.at, range.high + length * 0.01);
      }
    }
  }
  EXPECT_TRUE(axis_ticks({1, 1}, 5, "ns").ticks.empty());
  EXPECT_TRUE(axis_ticks({0, INFINITY}, 5, "ns").ticks.empty());
}

TEST(Ranges, GrowAndPad) {
  Range range;
  EXPECT_TRUE(range.empty());
  range.add(std::nan(""));
  EXPECT_TRUE(range.empty());
  range.add(5);
  EXPECT_GT(range.padded(0.1).high, range.padded(0.1).low);
}

}  // namespace
}  // namespace mbb::viewer
