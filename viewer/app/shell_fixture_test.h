// The program as a shell starts it, under Xvfb, over a store of made-up runs: for tests.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
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

// An X server of this process's own. It takes a free number by itself and says which (-displayfd): tests that start at
// once never race for one, as scripts that look for a free number first do.
class VirtualDisplay {
 public:
  VirtualDisplay() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return;
    const std::string report = fmt::format("{}", ends[1]);
    server_ = ::fork();
    if (server_ == 0) {
      const int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(quiet, STDERR_FILENO);
      ::close(ends[0]);
      ::execlp("Xvfb", "Xvfb", "-displayfd", report.c_str(), "-screen", "0", "1920x1400x24", "-nolisten", "tcp",
               nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    char digit = 0;
    while (::read(ends[0], &digit, 1) == 1 && digit != '\n') number_ += digit;
    ::close(ends[0]);
  }
  ~VirtualDisplay() {
    if (server_ <= 0) return;
    ::kill(server_, SIGTERM);
    ::waitpid(server_, nullptr, 0);
  }
  VirtualDisplay(const VirtualDisplay&) = delete;
  VirtualDisplay& operator=(const VirtualDisplay&) = delete;

  // As DISPLAY wants it; empty when no server came up.
  std::string name() const { return number_.empty() ? "" : ":" + number_; }

 private:
  pid_t server_ = -1;
  std::string number_;
};

class ShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '-');
    folder_ = std::filesystem::temp_directory_path() / fmt::format("mbb-shot-{}-{}", name, ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    if (run_shell("command -v Xvfb").status != 0) GTEST_SKIP() << "Xvfb is not installed: apt-get install xvfb";
    display_ = std::make_unique<VirtualDisplay>();
    ASSERT_NE(display_->name(), "") << "Xvfb came up with no display";
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
    return run_shell(fmt::format("cd {} && DISPLAY={} {}/bin/mbbench-view --store store.sqlite @2 @latest {}",
                                 folder_.string(), display_->name(), std::filesystem::absolute(MBB_BINARY_DIR).string(),
                                 words));
  }

  std::filesystem::path folder_;

 private:
  std::unique_ptr<VirtualDisplay> display_;
};

}  // namespace mbb::viewer
