// A forked process that plans ahead, a byte a cell, and its standard error.
#include "suites/runner/plan_probe.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr size_t kMostSaid = 400;

[[noreturn]] void go_ahead(size_t first, size_t count, const std::function<void(size_t)>& work, int done, int words,
                           pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const rlimit none{0, 0};  // no core file of a failure that is told
  setrlimit(RLIMIT_CORE, &none);
  dup2(words, STDERR_FILENO);
  for (size_t i = first; i < count; ++i) {
    work(i);
    const char byte = 1;
    if (write(done, &byte, 1) != 1) _exit(127);
  }
  _exit(0);
}

ssize_t read_some(int pipe, char* to, size_t most) {
  ssize_t got = 0;
  do got = read(pipe, to, most);
  while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

PlanProbe::PlanProbe(size_t count, std::function<void(size_t)> work) : count_(count), work_(std::move(work)) {
  start(0);
}

PlanProbe::~PlanProbe() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  for (const int pipe : {done_pipe_, words_pipe_})
    if (pipe >= 0) close(pipe);
}

void PlanProbe::start(size_t first) {
  if (first >= count_) return;
  std::array<int, 2> done{-1, -1}, words{-1, -1};
  if (pipe2(done.data(), O_CLOEXEC) != 0) return;
  if (pipe2(words.data(), O_CLOEXEC | O_NONBLOCK) != 0) {  // who says more than a pipe holds loses the rest
    close(done[0]), close(done[1]);
    return;
  }
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) go_ahead(first, count_, work_, done[1], words[1], parent);
  close(done[1]), close(words[1]);
  done_pipe_ = done[0], words_pipe_ = words[0];
}

// Of the process that has ended; it and its pipes are gone then.
std::string PlanProbe::last_words() {
  int status = 0;
  waitpid(std::exchange(process_, -1), &status, 0);
  std::string said;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = read_some(words_pipe_, part.data(), part.size())) > 0;)
    said.append(part.data(), static_cast<size_t>(got));
  close(std::exchange(done_pipe_, -1));
  close(std::exchange(words_pipe_, -1));
  if (WIFEXITED(status)) return "";  // at its end, or where it could not go on: nothing is known to be wrong
  const std::string words = printable(replace_all(trim(said), "\n", ";"), kMostSaid);
  return words.empty() ? fmt::format("planning it ended by signal {}", WTERMSIG(status)) : words;
}

std::string PlanProbe::failure(size_t i) {
  while (done_ <= i && process_ > 0) {
    char byte = 0;
    if (read_some(done_pipe_, &byte, 1) == 1) {
      ++done_;
      continue;
    }
    const std::string words = last_words();
    if (words.empty()) break;
    // It ended in the cell that is next.
    const size_t at = done_++;
    start(done_);
    if (at == i) return words;
  }
  return "";
}

}  // namespace mbb::suites
