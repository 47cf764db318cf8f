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

// Two H200s, of which a stranger used the second: its steps took 184 ms instead of 93, and the best of a chain was as
// ever.
baselines::Cell on_two_gpus(std::int64_t share_ns, int launches = 3) {
  baselines::Cell cell;
  cell.result_class = baselines::ResultClass::kMeasured;
  for (int i = 0; i < launches; ++i) {
    baselines::Launch launch;
    for (const char* when : {"_before_ns", "_after_ns"}) {
      launch.counts.push_back({std::string("canary_gpu_arithmetic") + when, 1'133'471});
      launch.counts.push_back({std::string("canary_gpu_share") + when, 1'133'900});
      launch.counts.push_back({std::string("canary_gpu1_arithmetic") + when, 1'125'280});
      if (share_ns > 0) launch.counts.push_back({std::string("canary_gpu1_share") + when, share_ns});
    }
    cell.launches.push_back(std::move(launch));
  }
  return cell;
}

TEST(Canary, AStrangerOnAGpuIsNamedWithoutABaseline) {
  EXPECT_EQ(contention(on_two_gpus(1'126'100)).by, 0.0);
  EXPECT_EQ(text(contention(on_two_gpus(1'126'100))), "");
  EXPECT_EQ(contention(on_two_gpus(0)).by, 0.0) << "an earlier program timed no queue";
  EXPECT_EQ(contention(on_two_gpus(1'210'000)).by, 0.0) << "7 % may be heat";
  baselines::Cell shared = on_two_gpus(2'250'560, 1);
  shared.launches.push_back(on_two_gpus(1'126'100, 1).launches[0]);
  EXPECT_NEAR(contention(shared).by, 1.0, 1e-9);
  EXPECT_EQ(text(contention(shared)),
            "another process uses GPU 1: work queued there took up to 2.00 times what it takes alone, beside 1 of 2 "
            "launches");
}

TEST(Canary, AStrangerExcusesWhatItTakes) {
  const auto quiet = on_two_gpus(1'125'280), shared = on_two_gpus(2'250'560);
  const Slowdown slowdown = machine_slowdown(quiet, shared);
  EXPECT_NEAR(slowdown.by, 1.0, 1e-3);
  EXPECT_EQ(slowdown.of, "GPU 1");
  EXPECT_EQ(cause(slowdown), "another process uses it");
  EXPECT_TRUE(explains(slowdown.by, 184.0 / 93.0 - 1));
  EXPECT_NEAR(machine_slowdown(on_two_gpus(0), shared).by, 1.0, 1e-3) << "an earlier program's baseline stays valid";
  EXPECT_EQ(machine_slowdown(on_two_gpus(0), on_two_gpus(1'210'000)).by, 0.0);
  EXPECT_EQ(machine_slowdown(quiet, on_two_gpus(1'210'000)).by, 0.0) << "7 % may be heat, and excuse nothing";
  EXPECT_EQ(machine_slowdown(shared, shared).by, 0.0) << "it was there then too";
  EXPECT_EQ(machine_slowdown(shared, quiet).by, 0.0);
  baselines::Cell slow = quiet;
  for (auto& launch : slow.launches)
    for (auto& count : launch.counts) count.count = count.count * 5 / 4;
  EXPECT_NEAR(machine_slowdown(quiet, slow).by, 0.25, 1e-6);
  EXPECT_EQ(cause(machine_slowdown(quiet, slow)), "the machine is slower") << "a lower clock slows both alike";
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
