// What `mbbench tune --overlap` says where it cannot choose; its work is overlap_tuner's.
#include "profiler/host/gpus.h"
#include "suites/cli/command.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class TuneOverlapCommand : public ProgramTest {
 protected:
  void expect_refused(const std::string& arguments, int status, const std::string& part) const {
    const Answer answer = run("tune --overlap --quiet " + arguments);
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(part)) << arguments << "\n" << answer.out;
    EXPECT_FALSE(fs::exists(folder_ / "overlap.toml"));
  }
};

TEST_F(TuneOverlapCommand, SaysWhatIsWrongBeforeAnythingRuns) {
  expect_refused("tp=2", kExitUsage, "host.device is cpu");
  expect_refused("device=cuda", kExitUsage, "no tensor-parallel collective to hide");
  expect_refused("device=cuda tp=2 --sms 8,0", kExitUsage, "--sms 8,0: numbers from 1 to 128");
  expect_refused("device=cuda tp=2 --launches 1", kExitUsage, "no noise to compare with");
  expect_refused("device=cuda tp=2 --judge seq_length=64", kExitUsage, "another shape than it is tuned on");
  expect_refused("device=cuda tp=2 --judge seq=32 --judge seq=31", kExitUsage, "31");
  expect_refused("device=cuda tp=2 --seconds soon", kExitUsage, "--seconds soon: a number from 1");
  expect_refused("device=cuda tp=2 seq=66", kExitUsage, "name another shape: --judge");
  expect_refused("device=cuda tp=2 iters=10", kExitUsage, "leave 5 to time, and a launch needs 6");
  expect_refused("device=cuda tp=2 iters=10 profile_step_start=8 profile_step_end=8", kExitUsage,
                 "no step is profiled");
  EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs"));
}

TEST_F(TuneOverlapCommand, ASuiteIsTunedByItsCellsOfOneGpu) {
  expect_refused("--suite llama3-8b-bf16", kExitUsage, "--overlap does not go with it");
  const auto refused = [&](const std::string& arguments, int status, const std::string& part) {
    const Answer answer = run("tune --brief --quiet " + arguments);
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(part)) << arguments << "\n" << answer.out;
  };
  refused("device=cuda --sms 8", kExitUsage, "--sms without --overlap");
  refused("--suite nope", kExitUsage, "no suite is called");
  refused("--suite llama3-8b-bf16 --only dp8", kExitBroken, "has no cell of one GPU to tune");
  if (profiler::list_gpus().gpus.empty()) refused("--suite llama3-8b-bf16 --only 8-layers-1gpu", kExitBroken, "CUDA");
}

TEST_F(TuneOverlapCommand, ChoosesNothingWithoutTheGpus) {
  if (profiler::list_gpus().gpus.size() >= 2) GTEST_SKIP() << "the GPUs are here";
  expect_refused("device=cuda tp=2 --sms 8", kExitBroken, "2 GPUs are needed");
}

}  // namespace
}  // namespace mbb::suites
