// The canary's work takes the time that a device's clock and bandwidth say, and twice the same.
#include "trainer/ops/cuda/canary.h"

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

}  // namespace
}  // namespace mbb::trainer::cuda
