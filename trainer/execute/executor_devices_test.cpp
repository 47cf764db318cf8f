// Which GPU a process takes, and what is refused before anything runs: no GPU is needed to say so.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "trainer/execute/executor.h"

namespace mbb::trainer {
namespace {

TEST(DevicesOfRanks, AreThoseOfTheirPlaceOnTheHost) {
  EXPECT_EQ(device_of_process(3, 8, 8).value(), 3);
  EXPECT_EQ(device_of_process(1, 2, 8).value(), 1);
  EXPECT_EQ(device_of_process(3, 8, 1).value(), 0) << "the launcher shows each process its own GPU";
  const auto more = device_of_process(3, 4, 2);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().what, "4 ranks on this host, which has 2 GPUs");
}

TEST(DevicesOfRanks, AreNotShared) {
  const std::array<std::string, 3> apart{"a 0000:01:00.0", "a 0000:02:00.0", "b 0000:01:00.0"};
  EXPECT_TRUE(check_distinct_devices(apart).has_value());
  const std::array<std::string, 3> same{"a 0000:01:00.0", "b 0000:01:00.0", "a 0000:01:00.0"};
  const Status refused = check_distinct_devices(same);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().what, "ranks 0 and 2 have one GPU, a 0000:01:00.0");
}

TEST(DevicesOfRanks, ReachEachOther) {
  unsetenv("NCCL_P2P_DISABLE");
  EXPECT_TRUE(check_peer(0, 1, true).has_value());
  const Status refused = check_peer(0, 1, false);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().what, "GPU 0 cannot reach the memory of GPU 1");
  setenv("NCCL_P2P_DISABLE", "1", 1);
  EXPECT_TRUE(check_peer(0, 1, false).has_value()) << "it is known";
  unsetenv("NCCL_P2P_DISABLE");
}

}  // namespace
}  // namespace mbb::trainer
