// Canaries tell a slower machine from a slower product.
#include "analysis/gate/canary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace mbb::analysis {
namespace {

baselines::Cell cell_of(std::int64_t arithmetic_ns, std::int64_t memory_ns) {
  baselines::Cell cell;
  for (int i = 0; i < 3; ++i) {
    baselines::Launch launch;
    launch.counts = {{"canary_arithmetic_before_ns", arithmetic_ns + i},
                     {"canary_arithmetic_after_ns", arithmetic_ns - i},
                     {"canary_memory_before_ns", memory_ns},
                     {"canary_memory_after_ns", memory_ns},
                     {"telemetry_samples", 7}};
    cell.launches.push_back(launch);
  }
  return cell;
}

TEST(Canary, TheLargerSlowdownOfTheTwoCounts) {
  const auto then = cell_of(1'000'000, 4'000'000);
  EXPECT_NEAR(machine_slowdown(then, cell_of(1'050'000, 4'000'000)).by, 0.05, 1e-9);
  EXPECT_NEAR(machine_slowdown(then, cell_of(1'000'000, 4'400'000)).by, 0.10, 1e-9);
  EXPECT_EQ(machine_slowdown(then, cell_of(900'000, 3'900'000)).by, 0.0) << "a faster machine excuses nothing";
}

TEST(Canary, WithoutCanariesOrOnAnotherDeviceItSaysNothing) {
  const auto then = cell_of(1'000'000, 4'000'000);
  baselines::Cell none, gpu = cell_of(2'000'000, 8'000'000);
  EXPECT_TRUE(std::isnan(canary_times(none).arithmetic_ns));
  EXPECT_EQ(machine_slowdown(none, then).by, 0.0);
  EXPECT_EQ(machine_slowdown(then, none).by, 0.0);
  gpu.result_class = baselines::ResultClass::kMeasured;
  EXPECT_EQ(machine_slowdown(then, gpu).by, 0.0) << "a CPU's canary says nothing of a GPU";
  EXPECT_EQ(machine_slowdown(gpu, gpu).by, 0.0);
}

TEST(Canary, AGpusCellIsHeldAgainstItsGpusCanaries) {
  const auto of_gpu = [](std::int64_t arithmetic_ns) {
    baselines::Cell cell = cell_of(1'000'000, 4'000'000);
    cell.result_class = baselines::ResultClass::kMeasured;
    for (auto& launch : cell.launches) launch.counts.push_back({"canary_gpu_arithmetic_after_ns", arithmetic_ns});
    return cell;
  };
  EXPECT_NEAR(machine_slowdown(of_gpu(1'000'000), of_gpu(1'070'000)).by, 0.07, 1e-9);
  EXPECT_EQ(metric_of_canaries(of_gpu(1)), "step_time");
  EXPECT_EQ(metric_of_canaries(cell_of(1, 1)), "cpu_step_time");
}

TEST(Canary, AnyOfItsGpusMayHaveBecomeSlower) {
  const auto of_two = [](std::int64_t first_ns, std::int64_t second_ns) {
    baselines::Cell cell;
    cell.result_class = baselines::ResultClass::kMeasured;
    baselines::Launch launch;
    launch.counts = {{"canary_gpu_memory_before_ns", first_ns},
                     {"canary_gpu_memory_before_spread_ns", 9 * first_ns},
                     {"canary_gpu_memory_after_ns", first_ns},
                     {"canary_gpu1_memory_before_ns", second_ns},
                     {"canary_gpu1_memory_after_ns", second_ns}};
    cell.launches = {launch, launch};
    return cell;
  };
  EXPECT_EQ(canaries_of(of_two(1, 1).launches[0]),
            (std::vector<std::string>{"canary_gpu1_memory", "canary_gpu_memory"}));
  EXPECT_NEAR(machine_slowdown(of_two(1000, 1000), of_two(1000, 1250)).by, 0.25, 1e-9);
  EXPECT_NEAR(machine_slowdown(of_two(1000, 1000), of_two(1100, 1000)).by, 0.10, 1e-9);
  EXPECT_EQ(machine_slowdown(of_two(1000, 1000), of_two(1000, 1250)).of, "GPU 1");
  EXPECT_EQ(machine_slowdown(of_two(1000, 1000), of_two(1100, 1000)).of, "GPU 0");
  EXPECT_EQ(machine_slowdown(of_two(1000, 1100), of_two(1080, 1100)).by, 0.0) << "they wait for the second as before";
  EXPECT_NEAR(machine_slowdown(of_two(1000, 1100), of_two(1210, 1100)).by, 0.10, 1e-9);
  EXPECT_EQ(machine_slowdown(of_two(1000, 1100), of_two(1210, 1100)).of, "GPU 0");
  baselines::Cell one = of_two(1000, 1000);
  for (auto& launch : one.launches) launch.counts.resize(3);
  EXPECT_EQ(machine_slowdown(one, of_two(1000, 1250)).by, 0.0) << "an earlier program timed the first alone";
}

TEST(Canary, ASlowdownExplainsAChangeThatItIsHalfOf) {
  EXPECT_TRUE(explains(0.05, 0.06));
  EXPECT_TRUE(explains(0.03, 0.06));
  EXPECT_FALSE(explains(0.02, 0.06));
  EXPECT_FALSE(explains(0.005, 0.006)) << "too little to tell";
  EXPECT_FALSE(explains(0.0, 0.02));
}

}  // namespace
}  // namespace mbb::analysis
