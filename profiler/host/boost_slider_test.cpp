// The slider driven through a stand-in nvidia-smi: set, read back, restored on exit, error and kill.
#include "profiler/host/boost_slider.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace mbb::profiler {
namespace {

namespace fs = std::filesystem;

class Boost : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("mbb_boost_" + std::to_string(getpid()) + "_" +
                                              testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    old_path_ = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "";
    stand_in("value=\"$3\"; echo \"$value\" > " + state().string());
    ::setenv("PATH", (folder_.string() + ":" + old_path_).c_str(), 1);
    std::ofstream(state()) << "1\n";
  }
  void TearDown() override {
    ::setenv("PATH", old_path_.c_str(), 1);
    fs::remove_all(folder_);
  }

  // A program that keeps the slider in a file; `set` is what it does for --vboost.
  void stand_in(const std::string& set) const {
    const fs::path program = folder_ / "nvidia-smi";
    std::ofstream(program) << "#!/bin/sh\n[ \"$1\" = boost-slider ] || exit 9\n"
                           << "if [ \"$2\" = -l ]; then\n  echo '| GPU 0 sliders |'\n"
                           << "  echo \"|   0   vboost    0/4    $(cat " << state().string() << ") |\"\n  exit 0\nfi\n"
                           << "[ \"$2\" = --vboost ] || exit 8\n"
                           << set << "\n";
    chmod(program.c_str(), 0755);
  }

  fs::path state() const { return folder_ / "slider"; }
  int value() const {
    int now = -1;
    std::ifstream(state()) >> now;
    return now;
  }

  fs::path folder_;
  std::string old_path_;
};

TEST_F(Boost, SetReadBackAndRestored) {
  const auto before = read_boost_slider(0);
  ASSERT_TRUE(before) << before.error().what;
  EXPECT_EQ(before->value, 1);
  EXPECT_EQ(before->most, 4);
  {
    const auto guard = BoostGuard::set(0, 3);
    ASSERT_TRUE(guard) << guard.error().what;
    EXPECT_EQ(value(), 3);
    EXPECT_EQ((*guard)->before(), 1);
  }
  EXPECT_EQ(value(), 1);
}

TEST_F(Boost, AKilledProcessLeavesTheOldValue) {
  for (const int signal : {SIGKILL, SIGTERM, SIGSEGV}) {
    const pid_t child = fork();
    if (child == 0) {
      const auto guard = BoostGuard::set(0, 4);
      if (!guard) _exit(7);
      pause();
      _exit(0);
    }
    for (int i = 0; i < 500 && value() != 4; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(value(), 4);
    kill(child, signal);
    waitpid(child, nullptr, 0);
    for (int i = 0; i < 500 && value() != 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(value(), 1) << "signal " << signal;
  }
}

TEST_F(Boost, WhatTheCardRefusesIsSaid) {
  const auto above = BoostGuard::set(0, 5);
  ASSERT_FALSE(above);
  EXPECT_EQ(above.error().code, ErrorCode::kBadArgument);
  EXPECT_NE(above.error().what.find("host.vboost = 5"), std::string::npos);
  EXPECT_EQ(value(), 1);
  stand_in("echo 'Insufficient Permissions'; exit 4");
  const auto refused = BoostGuard::set(0, 2);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("Insufficient Permissions"), std::string::npos);
  stand_in("exit 0");
  const auto ignored = BoostGuard::set(0, 2);
  ASSERT_FALSE(ignored);
  EXPECT_NE(ignored.error().what.find("kept vboost 1"), std::string::npos);
  ::setenv("PATH", "/nonexistent", 1);
  EXPECT_EQ(read_boost_slider(0).error().code, ErrorCode::kUnavailable);
}

TEST(BoostText, OtherTextsHaveNoSlider) {
  EXPECT_FALSE(parse_boost_slider(""));
  EXPECT_FALSE(parse_boost_slider("No devices were found"));
  EXPECT_FALSE(parse_boost_slider("vboost N/A"));
  EXPECT_EQ(parse_boost_slider("GPU 0\n  vboost  Max 4  Current 2\n")->value, 2);
}

}  // namespace
}  // namespace mbb::profiler
