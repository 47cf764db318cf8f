// The goal of memory-bound kernels, read off what was measured.
#include "suites/micro/ops/memory_goal.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

constexpr double kMiB = 1 << 20;

TEST(MemoryGoal, NamesWhatMissesItTheWorstFirst) {
  EXPECT_EQ(memory_goal_text({{"case/a", 64 * kMiB, 0.8499},
                              {"case/small", 63.9 * kMiB, 0.2},
                              {"case/met", 128 * kMiB, 0.85},
                              {"case/b", 512 * kMiB, 0.5},
                              {"case/no room", 70000 * kMiB, 0.0}}),
            "memory-bound ops with a tensor of 64 MiB or more: 4; below 85 % of a copy of as many bytes: 2; without "
            "such a copy: 1\n"
            "       -  case/no room\n"
            "  50.0 %  case/b\n"
            "  84.9 %  case/a\n");
}

TEST(MemoryGoal, IsAboutLargeTensorsAlone) {
  EXPECT_EQ(memory_goal_text({}), "");
  EXPECT_EQ(memory_goal_text({{"case/small", 32 * kMiB, 0.2}}), "");
  EXPECT_EQ(memory_goal_text({{"case/met", 64 * kMiB, 1.04}}),
            "memory-bound ops with a tensor of 64 MiB or more: 1; below 85 % of a copy of as many bytes: 0\n");
}

}  // namespace
}  // namespace mbb::suites
