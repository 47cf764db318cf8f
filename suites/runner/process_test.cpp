// Child processes: lines, exit status, signals, silence, a clean stop.
#include "suites/runner/process.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "profiler/base/clock.h"
#include "profiler/base/file.h"

namespace mbb::suites {
namespace {

ProcessOptions shell(const std::string& script) {
  ProcessOptions options;
  options.arguments = {"/bin/sh", "-c", script};
  options.stderr_file = std::filesystem::path(testing::TempDir()) / fmt::format("process_test_{}.stderr", getpid());
  std::filesystem::remove(options.stderr_file);
  return options;
}

TEST(Process, LinesAndExitStatus) {
  ProcessOptions options = shell("echo one; echo two >&2; printf three\\\\nfour; exit 7");
  std::vector<std::string> lines;
  options.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  const auto end = run_process(options);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_status, 7);
  EXPECT_EQ(end->signal, 0);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "three", "four"})) << "the last line has no end";
  EXPECT_EQ(*read_file(options.stderr_file.string()), "two\n");
}

TEST(Process, TheChildsEnvironmentIsOursWithSomeSetOverIt) {
  ::setenv("MBB_PROCESS_TEST", "kept", 1);
  ProcessOptions options = shell("echo $MBB_PROCESS_TEST $NCCL_NVLS_ENABLE $MBB_PROCESS_NEW");
  options.environment = {{"NCCL_NVLS_ENABLE", "0"}, {"MBB_PROCESS_NEW", "new one"}};
  std::vector<std::string> lines;
  options.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  ASSERT_TRUE(run_process(options).has_value());
  EXPECT_EQ(lines, (std::vector<std::string>{"kept 0 new one"}));
  ::unsetenv("MBB_PROCESS_TEST");
}

TEST(Process, ASignalIsReported) {
  const auto end = run_process(shell("kill -SEGV $$"));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGSEGV);
}

TEST(Process, SilenceEndsTheWholeGroup) {
  ProcessOptions options = shell("sleep 100 & sleep 100");
  options.silence_limit_ms = 300;
  const int64_t begin = monotonic_ns();
  const auto end = run_process(options);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->timed_out);
  EXPECT_LT(monotonic_ns() - begin, 20'000'000'000);
}

TEST(Process, StopSendsSigterm) {
  std::atomic<bool> stop = false;
  ProcessOptions options = shell("trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done");
  options.stop = &stop;
  options.on_line = [&](std::string_view) { stop = true; };
  const auto end = run_process(options);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->stopped);
  EXPECT_EQ(end->exit_status, 75);
}

TEST(Process, AMissingProgramIsExit127) {
  ProcessOptions options = shell("");
  options.arguments = {"/no/such/program"};
  const auto end = run_process(options);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_status, 127);
}

}  // namespace
}  // namespace mbb::suites
