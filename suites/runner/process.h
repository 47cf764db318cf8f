// A child process of our own program, watched line by line, with a time limit and a clean stop.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::suites {

struct ProcessEnd {
  int exit_status = 0;     // when it exited by itself
  int signal = 0;          // that ended it; 0 for none
  bool timed_out = false;  // silent for too long
  bool over_time = false;  // past its time limit
  bool stopped = false;    // we stopped it, because `stop` was set
};

struct ProcessOptions {
  std::vector<std::string> arguments;                            // argv[0] is the program's path
  std::vector<std::pair<std::string, std::string>> environment;  // set over what this process has
  std::filesystem::path stderr_file;                             // appended to
  int64_t silence_limit_ms = 300'000;                            // without a line on stdout; then SIGKILL
  int64_t time_limit_ms = 0;                                     // of the whole run; then SIGKILL; 0: none
  const std::atomic<bool>* stop = nullptr;                       // sends SIGTERM once, SIGKILL after a grace of 10 s
  std::function<void(std::string_view line)> on_line;            // ended by a newline or a carriage return
  std::function<bool()> on_tick = {};  // a few times a second; true is a sign of life, as a line is
};

// Runs the child to its end. It gets a process group of its own, which is killed with it, and dies with this process.
Result<ProcessEnd> run_process(const ProcessOptions& options);

// The running program's file.
Result<std::string> own_program();

}  // namespace mbb::suites
