// The program as a shell starts it, under Xvfb, over a store of made-up runs: for tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "baselines/store/store.h"
#include "viewer/app/demo_runs.h"

namespace mbb::viewer {

struct Answer {
  int status = -1;
  std::string output;
};

inline Answer run_shell(const std::string& command) {
  Answer answer;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return answer;
  std::array<char, 4096> buffer{};
  while (std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) answer.output.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

class ShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '-');
    folder_ = std::filesystem::temp_directory_path() / fmt::format("mbb-shot-{}-{}", name, ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    if (run_shell("command -v xvfb-run").status != 0) GTEST_SKIP() << "xvfb-run is not installed: apt-get install xvfb";
    const auto bundles = write_demo_bundles(folder_, demo());
    ASSERT_TRUE(bundles.has_value()) << bundles.error().what;
    auto store = baselines::Store::open(folder_ / "store.sqlite");
    ASSERT_TRUE(store.has_value()) << store.error().what;
    ASSERT_TRUE(store->index(folder_).has_value());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  virtual DemoOptions demo() const { return {.runs = 2, .cells = 3, .trace_spans = 10'000}; }

  // From the folder itself, so that no path of this machine is in a picture.
  Answer view(const std::string& words) const {
    return run_shell(fmt::format(
        "cd {} && xvfb-run -a -s '-screen 0 1920x1400x24' {}/bin/mbbench-view --store store.sqlite @2 @latest {}",
        folder_.string(), std::filesystem::absolute(MBB_BINARY_DIR).string(), words));
  }

  std::filesystem::path folder_;
};

}  // namespace mbb::viewer
