// Windows by default, by one end and by both; and those that make no sense.
#include "trainer/run/profile_window.h"

#include <gtest/gtest.h>

#include "trainer/run/layout.h"

namespace mbb::trainer {
namespace {

Config with(int64_t iters, int64_t start, int64_t end, std::vector<int64_t> ranks = {}) {
  Config c;
  c.train.train_iters = iters;
  c.profiling.profile_step_start = start;
  c.profiling.profile_step_end = end;
  c.profiling.profile_ranks = std::move(ranks);
  return c;
}

void expect_window(const Config& config, int64_t first, int64_t end) {
  const auto window = profile_window(config, 4);
  ASSERT_TRUE(window) << window.error().what;
  EXPECT_EQ(window->first, first);
  EXPECT_EQ(window->end, end);
}

TEST(ProfileWindow, DefaultsLeaveStepsToTime) {
  expect_window(with(60, -1, -1), 55, 60);
  expect_window(with(6, -1, -1), 3, 6);
  expect_window(with(1, -1, -1), 0, 1);
  expect_window(with(60, 10, -1), 10, 15);
  expect_window(with(60, 58, -1), 58, 60);
  expect_window(with(60, -1, 20), 15, 20);
  expect_window(with(60, 10, 12), 10, 12);
}

TEST(ProfileWindow, EqualEndsProfileNothing) {
  const auto window = profile_window(with(60, 7, 7), 1);
  ASSERT_TRUE(window);
  EXPECT_TRUE(window->empty());
  EXPECT_FALSE(window->has_step(7));
}

TEST(ProfileWindow, RanksAreSortedAndChecked) {
  const auto window = profile_window(with(60, -1, -1, {3, 0, 3}), 4);
  ASSERT_TRUE(window);
  EXPECT_EQ(window->ranks, (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(window->has_rank(3));
  EXPECT_FALSE(window->has_rank(1));
  EXPECT_TRUE(profile_window(with(60, -1, -1), 4)->has_rank(2));
}

TEST(ProfileWindow, ErrorsNameTheKnob) {
  for (const auto& [config, knob] : {std::pair{with(60, 10, 61), "profiling.profile_step_end"},
                                     std::pair{with(60, 61, -1), "profiling.profile_step_start"},
                                     std::pair{with(60, 20, 10), "profiling.profile_step_start"},
                                     std::pair{with(60, -1, -1, {4}), "profiling.profile_ranks"}}) {
    const auto window = profile_window(config, 4);
    ASSERT_FALSE(window) << knob;
    EXPECT_EQ(window.error().code, ErrorCode::kBadArgument);
    EXPECT_NE(window.error().what.find(knob), std::string::npos) << window.error().what;
  }
  // The same rules hold when a whole configuration is resolved.
  EXPECT_FALSE(resolve(with(60, -1, 61)));
  Config nsys;
  nsys.profiling.use_nsys_profiler = true;
  ASSERT_FALSE(resolve(nsys));
  EXPECT_NE(resolve(nsys).error().what.find("use_nsys_profiler"), std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
