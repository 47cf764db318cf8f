// The canary's work takes the time that a device's clock and bandwidth say, and twice the same; a stranger lengthens
// its queue alone.
#include "trainer/ops/cuda/canary.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "profiler/base/clock.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

class Canary : public GpuTest {};

TEST_F(Canary, FixedWorkTakesTheSameTimeTwice) {
  const auto first = canary(0), second = canary(0);
  ASSERT_TRUE(first.has_value()) << format(first.error());
  ASSERT_TRUE(second.has_value()) << format(second.error());
  // 500,000 dependent multiply-adds of four cycles at 1 to 3 GHz; 256 MiB at 0.3 to 9 TB/s.
  EXPECT_GT(first->arithmetic_ns, 600'000);
  EXPECT_LT(first->arithmetic_ns, 2'500'000);
  EXPECT_GT(first->memory_ns, 29'000);
  EXPECT_LT(first->memory_ns, 900'000);
  EXPECT_NEAR(static_cast<double>(first->arithmetic_ns) / static_cast<double>(second->arithmetic_ns), 1, 0.1);
  EXPECT_FALSE(canary(4711).has_value()) << "no such device";
}

// How many times what a chain takes alone it takes in a queue.
double times_alone(const profiler::CudaCanary& times) {
  return static_cast<double>(times.share_ns) / static_cast<double>(times.arithmetic_ns);
}

// No test of its own: what the stranger of the next one runs, until nobody reads what it says.
TEST_F(Canary, DISABLED_Stranger) {
  constexpr std::string_view kSaid = "at work\n";
  for (const int64_t began = monotonic_ns(); monotonic_ns() - began < 20'000'000'000;) {
    ASSERT_TRUE(canary(0).has_value());
    if (write(STDOUT_FILENO, kSaid.data(), kSaid.size()) < 0) return;
  }
}

TEST_F(Canary, AStrangerLengthensTheQueueAlone) {
  const auto alone = canary(0);
  ASSERT_TRUE(alone.has_value()) << format(alone.error());
  if (times_alone(*alone) > 1.1) GTEST_SKIP() << "another process uses this GPU already";
  EXPECT_GT(times_alone(*alone), 0.98);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* stranger = popen(("exec env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX '" + program +
                          "' --gtest_also_run_disabled_tests --gtest_filter=Canary.DISABLED_Stranger")
                             .c_str(),
                         "r");
  ASSERT_NE(stranger, nullptr);
  std::array<char, 256> line{};
  bool at_work = false;
  while (!at_work && std::fgets(line.data(), line.size(), stranger) != nullptr)
    at_work = std::string_view(line.data()).ends_with("at work\n");
  const auto shared = canary(0);
  pclose(stranger);  // which ends it
  if (!at_work) GTEST_SKIP() << "no other process can use this GPU";
  ASSERT_TRUE(shared.has_value()) << format(shared.error());
  EXPECT_GT(times_alone(*shared), 1.1);
  EXPECT_NEAR(static_cast<double>(shared->arithmetic_ns) / static_cast<double>(alone->arithmetic_ns), 1, 0.1)
      << "the best of a chain knows no neighbour";
}

}  // namespace
}  // namespace mbb::trainer::cuda
