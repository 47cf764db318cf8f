// Windows and their order.
#include "trainer/data/dataset.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace mbb::trainer {
namespace {

TokenSourcePtr counting(std::int32_t tokens) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens));
  std::iota(all.begin(), all.end(), 0);
  return make_in_memory("counting", {all}, tokens).value();
}

TEST(Dataset, UnshuffledWindowsFollowEachOtherAndShareTheirBorder) {
  const Dataset data = Dataset::open(counting(11), {.seq_length = 5, .shuffle = false}).value();
  EXPECT_EQ(data.windows(), 2);
  std::vector<std::int32_t> window(6);
  ASSERT_TRUE(data.sample(0, window).has_value());
  EXPECT_EQ(window, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  ASSERT_TRUE(data.sample(1, window).has_value());
  EXPECT_EQ(window, (std::vector<std::int32_t>{5, 6, 7, 8, 9, 10}));
  ASSERT_TRUE(data.sample(2, window).has_value());
  EXPECT_EQ(window.front(), 0);
}

TEST(Dataset, EveryEpochVisitsEachWindowOnceInItsOwnOrder) {
  const Dataset data = Dataset::open(counting(1001), {.seq_length = 10, .seed = 9}).value();
  ASSERT_EQ(data.windows(), 100);
  std::vector<std::vector<std::int64_t>> epochs(3);
  for (std::int64_t g = 0; g < 300; ++g) epochs[static_cast<std::size_t>(g / 100)].push_back(data.window_of(g));
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 100u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  const Dataset again = Dataset::open(counting(1001), {.seq_length = 10, .seed = 9}).value();
  EXPECT_EQ(again.window_of(250), data.window_of(250));
  const Dataset other = Dataset::open(counting(1001), {.seq_length = 10, .seed = 10}).value();
  int equal = 0;
  for (std::int64_t g = 0; g < 100; ++g) equal += other.window_of(g) == data.window_of(g) ? 1 : 0;
  EXPECT_LT(equal, 10);
}

TEST(Dataset, TooShortAStreamIsRefused) {
  EXPECT_TRUE(Dataset::open(counting(6), {.seq_length = 5}).has_value());
  const auto result = Dataset::open(counting(5), {.seq_length = 5});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().what.find("5 tokens hold no window of seq_length 5"), std::string::npos);
  EXPECT_FALSE(Dataset::open(counting(5), {.seq_length = 0}).has_value());
}

TEST(Dataset, TheShippedTextLastsAQuickstart) {
  const Dataset data = Dataset::open(open_shipped_text(256).value(), {.seq_length = 64}).value();
  EXPECT_GE(data.windows(), 60 * 8);
  std::vector<std::int32_t> window(65);
  for (std::int64_t g = 0; g < 2 * data.windows(); ++g) ASSERT_TRUE(data.sample(g, window).has_value());
}

}  // namespace
}  // namespace mbb::trainer
