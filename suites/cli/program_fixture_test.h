// The program as a person runs it, in a folder of its own that stays when the test fails: for smoke tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace mbb::suites {

namespace fs = std::filesystem;

struct Answer {
  int status = -1;  // the exit status, or minus the signal
  std::string out;  // stdout and stderr
  bool has(const std::string& text) const { return out.find(text) != std::string::npos; }
};

inline Answer shell(const std::string& line) {
  Answer answer;
  FILE* pipe = popen((line + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return answer;
}

inline std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) /
              (std::string("mbbench_") + test->test_suite_name() + "_" + test->name() + "_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    program_ = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  Answer sh(const std::string& command) const { return shell("cd " + folder_.string() + " && " + command); }
  Answer run(const std::string& arguments) const { return sh(program_ + " " + arguments); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  fs::path folder_;
  std::string program_;
};

}  // namespace mbb::suites
