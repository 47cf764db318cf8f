// Tests whose ranks are processes: this program starts itself again, a process a rank, with one of its tests as what
// the rank does (DISABLED_ keeps that one out of a plain run).
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "profiler/base/file.h"

namespace mbb::trainer {

// Starts rank `rank` of `ranks`, which meet at the file `meet_at`; what it says is appended to `log`. Gives its
// process, for waitpid(); negative: it could not be started.
inline pid_t start_rank_of_this_program(int rank, int ranks, const std::string& meet_at, const std::string& log,
                                        const std::string& test) {
  char own[PATH_MAX] = {};
  if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) return -1;
  const pid_t process = fork();
  if (process != 0) return process;
  for (const char* shard : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) unsetenv(shard);  // the rank runs its one test
  setenv("MBBENCH_RANK", std::to_string(rank).c_str(), 1);
  setenv("MBBENCH_RANKS", std::to_string(ranks).c_str(), 1);
  setenv("MBBENCH_MEET_AT", ("file:" + meet_at).c_str(), 1);
  const int out = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  const std::string filter = "--gtest_filter=" + test;
  execl(own, own, "--gtest_also_run_disabled_tests", filter.c_str(), nullptr);
  _exit(127);
}

// Runs the test `name` of this program in `ranks` processes; gives what all of them said. Those that are still there
// after `limit` are killed, and named in what it gives.
inline std::string in_processes(int ranks, const std::string& name,
                                std::chrono::seconds limit = std::chrono::minutes(10)) {
  const std::string folder = testing::TempDir() + fmt::format("ranks-{}-{}", getpid(), name);
  std::filesystem::create_directories(folder);
  const auto log = [&](int rank) { return fmt::format("{}/{}", folder, rank); };
  std::vector<pid_t> started;
  for (int rank = 0; rank < ranks; ++rank)
    started.push_back(start_rank_of_this_program(rank, ranks, folder + "/meet", log(rank), name));
  const auto end = std::chrono::steady_clock::now() + limit;
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = started[static_cast<size_t>(rank)];
    while (waitpid(process, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (std::chrono::steady_clock::now() < end) continue;
      all += fmt::format("UNEXPECTED rank {}: still there after {} s\n", rank, limit.count());
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
      break;
    }
    if (const auto said = read_file(log(rank))) all += *said;
  }
  std::filesystem::remove_all(folder);
  return all;
}

}  // namespace mbb::trainer
