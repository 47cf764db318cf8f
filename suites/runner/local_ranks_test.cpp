// The ranks that a launch starts, with a script in the program's place.
#include "suites/runner/local_ranks.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/runner/child.h"
#include "trainer/comm/process_place.h"

namespace mbb::suites {
namespace {

class LocalRanksOfAScript : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              fmt::format("ranks-{}-{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(make_dirs(folder_));
    ASSERT_TRUE(write_file(folder_ / kLaunchConfigFile, "train.seed=3\n"));
  }
  void TearDown() override {
    for (const char* name : {"MBBENCH_RANK", "MBBENCH_RANKS", "MBBENCH_MEET_AT"}) unsetenv(name);
    std::filesystem::remove_all(folder_);
  }

  std::string script(const std::string& lines) const {
    const std::filesystem::path path = folder_ / "program";
    EXPECT_TRUE(write_file(path, "#!/bin/sh\n" + lines));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path.string();
  }

  std::filesystem::path folder_;
};

TEST_F(LocalRanksOfAScript, KnowTheirPlaceAndTheConfiguration) {
  {
    const auto ranks = LocalRanks::start(
        folder_, 3, script("echo \"$MBBENCH_RANK of $MBBENCH_RANKS at $MBBENCH_MEET_AT: $1\" > \"$2/said\"\n"));
    ASSERT_TRUE(ranks.has_value()) << ranks.error().what;
  }
  const std::string meeting = "file:" + std::filesystem::absolute(folder_ / "meet").string();
  for (int rank = 1; rank < 3; ++rank) {
    const std::filesystem::path own = folder_ / "ranks" / std::to_string(rank);
    EXPECT_EQ(read_file(own / "said").value(), fmt::format("{} of 3 at {}: {}\n", rank, meeting, kLaunchCommand));
    EXPECT_EQ(read_file(own / kLaunchConfigFile).value(), "train.seed=3\n");
  }
  const auto place = trainer::place_if_any();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 0);
  EXPECT_EQ(place->size, 3);
  EXPECT_EQ(place->rendezvous, meeting);
}

TEST_F(LocalRanksOfAScript, ThatEndEarlyAreNamedWithTheirLastWords) {
  const auto ranks = LocalRanks::start(
      folder_, 3, script("if [ \"$MBBENCH_RANK\" = 2 ]; then echo no such GPU >&2; exit 7; fi\nsleep 1\n"));
  ASSERT_TRUE(ranks.has_value()) << ranks.error().what;
  Status status;
  for (int tries = 0; tries < 2000 && status; ++tries) {
    status = (*ranks)->check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().what, "rank 2 ended with status 7 before it met the others: no such GPU");
}

// Whatever they wait for: rank 0 is their parent, and its end is theirs.
TEST_F(LocalRanksOfAScript, EndWhenRankZeroIsKilledBeforeTheyMeet) {
  const std::string program = script("echo $$ > \"$2/part\" && mv \"$2/part\" \"$2/pid\"\nexec sleep 600\n");
  const pid_t first = fork();
  if (first == 0) {
    const auto ranks = LocalRanks::start(folder_, 3, program);
    pause();
    _exit(0);
  }
  std::vector<std::string> running;  // a zombie has no command line
  for (int rank = 1; rank < 3; ++rank) {
    const std::filesystem::path pid = folder_ / "ranks" / std::to_string(rank) / "pid";
    while (!file_exists(pid)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    running.push_back(fmt::format("/proc/{}/cmdline", trim(read_file(pid).value())));
    while (read_file(running.back()).value_or("").empty())  // as it becomes the other program
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const std::string& process : running) {
    while (!read_file(process).value_or("").empty() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(read_file(process).value_or("").empty()) << process;
  }
}

TEST_F(LocalRanksOfAScript, AreStartedForSeveralGpusAlone) {
  trainer::Config config;
  config.parallel.gpus = 2;
  EXPECT_EQ(local_ranks_of(config, folder_).value(), nullptr) << "on the CPU ranks are threads";
  config.host.device = trainer::Device::kCuda;
  config.host.share_device = true;
  EXPECT_EQ(local_ranks_of(config, folder_).value(), nullptr) << "they share a GPU as threads";
  config.host.share_device = false;
  config.parallel.gpus = 1;
  EXPECT_EQ(local_ranks_of(config, folder_).value(), nullptr);
}

}  // namespace
}  // namespace mbb::suites
