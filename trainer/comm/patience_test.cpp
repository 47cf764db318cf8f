// Limits on the time without a sign of life, and the time itself.
#include "trainer/comm/patience.h"

#include <gtest/gtest.h>

namespace mbb::trainer {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(Patience, FollowsTheLongestStepOnceThereAreTwo) {
  Patience patience;
  EXPECT_EQ(patience.ms(), 120'000);
  patience.step_took(kSecondNs / 100);
  EXPECT_EQ(patience.ms(), 120'000) << "the second may capture graphs";
  patience.step_took(kSecondNs / 100);
  EXPECT_EQ(patience.ms(), 10'000);
  patience.step_took(2 * kSecondNs);
  EXPECT_EQ(patience.ms(), 40'000);
  patience.step_took(kSecondNs);
  EXPECT_EQ(patience.ms(), 40'000) << "a shorter step says nothing";
  patience.step_took(60 * kSecondNs);
  EXPECT_EQ(patience.ms(), 120'000) << "never more than before the first step";
}

TEST(Patience, LeavesTheHostItsTime) {
  Patience patience;
  for (int step = 0; step < 2; ++step) patience.step_took(1);
  EXPECT_EQ(patience.ms(), 10'000);
  patience.host_works(true);
  EXPECT_EQ(patience.ms(), 120'000);
  patience.host_works(false);
  EXPECT_EQ(patience.ms(), 10'000);
}

TEST(QuietTime, CountsFromTheLastSignOfLife) {
  QuietTime quiet;
  int64_t now = kSecondNs;
  const auto after_ms = [&](int64_t ms) { return now += ms * 1'000'000; };
  EXPECT_FALSE(quiet.too_long(1, 1'000, now));
  EXPECT_FALSE(quiet.too_long(1, 1'000, after_ms(999)));
  EXPECT_FALSE(quiet.too_long(2, 1'000, after_ms(2))) << "a sign of life";
  EXPECT_FALSE(quiet.too_long(2, 1'000, after_ms(600)));
  EXPECT_FALSE(quiet.too_long(2, 500, after_ms(100))) << "another limit begins anew";
  EXPECT_FALSE(quiet.too_long(2, 500, after_ms(499)));
  EXPECT_TRUE(quiet.too_long(2, 500, after_ms(1)));
  EXPECT_FALSE(quiet.too_long(2, 0, after_ms(9'000))) << "no limit";
}

TEST(QuietTime, AStoppedProcessWasNotQuiet) {
  QuietTime quiet;
  int64_t now = kSecondNs;
  EXPECT_FALSE(quiet.too_long(1, 10'000, now));
  EXPECT_FALSE(quiet.too_long(1, 10'000, now += 3'600 * kSecondNs));
  for (int look = 0; look < 8; ++look) EXPECT_FALSE(quiet.too_long(1, 10'000, now += kSecondNs)) << look;
  EXPECT_TRUE(quiet.too_long(1, 10'000, now += kSecondNs));
}

}  // namespace
}  // namespace mbb::trainer
