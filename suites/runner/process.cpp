// fork, exec, a pipe for stdout, and poll.
#include "suites/runner/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <map>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/env.h"

namespace mbb::suites {
namespace {

constexpr int64_t kStopGraceMs = 10'000;
constexpr size_t kLongestLine = size_t{1} << 16U;  // a longer one is handed over in parts

tl::unexpected<Error> system_error(const std::string& what) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(errno)));
}

// Only async-signal-safe calls between fork and exec.
[[noreturn]] void become_child(char* const* argv, char* const* environment, int out, int err, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  execve(argv[0], argv, environment);
  _exit(127);
}

class Watch {
 public:
  Watch(const ProcessOptions& options, pid_t child, int pipe) : options_(options), child_(child), pipe_(pipe) {}

  ProcessEnd until_end() {
    int64_t last_sign_ms = now_ms();
    while (read_lines(last_sign_ms)) {
      if (options_.on_tick && options_.on_tick()) last_sign_ms = now_ms();
      if (options_.time_limit_ms > 0 && now_ms() - started_ms_ > options_.time_limit_ms && !end_.over_time) {
        end_.over_time = true;
        kill(-child_, SIGKILL);
      }
      const bool silent = now_ms() - last_sign_ms > options_.silence_limit_ms;
      const bool stop = options_.stop && options_.stop->load();
      if (silent && !end_.timed_out) {
        end_.timed_out = true;
        kill(-child_, SIGKILL);
      }
      if (stop && !end_.stopped) {
        end_.stopped = true;
        stopped_at_ms_ = now_ms();
        kill(-child_, SIGTERM);  // a shell alone would not pass it on
      }
      if (end_.stopped && now_ms() - stopped_at_ms_ > kStopGraceMs) kill(-child_, SIGKILL);
    }
    if (!pending_.empty()) hand_over(pending_);
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    kill(-child_, SIGKILL);  // what it may have left behind
    if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
    if (WIFEXITED(status)) end_.exit_status = WEXITSTATUS(status);
    return end_;
  }

 private:
  static int64_t now_ms() { return monotonic_ns() / 1'000'000; }

  // False at the end of the child's output.
  bool read_lines(int64_t& last_sign_ms) {
    pollfd waiting{pipe_, POLLIN, 0};
    if (poll(&waiting, 1, 200) <= 0) return true;
    char buffer[4096];
    const ssize_t got = read(pipe_, buffer, sizeof buffer);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    if (got == 0) return false;
    last_sign_ms = now_ms();
    pending_.append(buffer, static_cast<size_t>(got));
    size_t end = 0;
    size_t begin = 0;
    for (; (end = pending_.find_first_of("\r\n", begin)) != std::string::npos; begin = end + 1) {
      hand_over(std::string_view(pending_).substr(begin, end - begin));
      if (pending_[end] == '\r' && end + 1 < pending_.size() && pending_[end + 1] == '\n') ++end;
    }
    pending_.erase(0, begin);
    if (pending_.size() > kLongestLine) hand_over(std::exchange(pending_, {}));
    return true;
  }

  void hand_over(std::string_view line) const {
    if (options_.on_line) options_.on_line(line);
  }

  const ProcessOptions& options_;
  pid_t child_;
  int pipe_;
  int64_t started_ms_ = now_ms();
  ProcessEnd end_;
  std::string pending_;
  int64_t stopped_at_ms_ = 0;
};

}  // namespace

Result<std::string> own_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0)
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("finding this program's own file, which its launches start: reading /proc/self/exe: {}",
                    std::strerror(errno)),
        "mount /proc (in a chroot: mount -t proc proc /proc): without it nothing runs, and no machine is known");
  return std::string(path, static_cast<size_t>(length));
}

namespace {

// "NAME=value" of everything the child gets.
std::vector<std::string> environment_of(const ProcessOptions& options) {
  std::map<std::string, std::string> all;
  for (auto& [name, value] : env_all()) all[name] = value;
  for (const auto& [name, value] : options.environment) all[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : all) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Result<ProcessEnd> run_process(const ProcessOptions& options) {
  std::vector<std::string> arguments = options.arguments, entries = environment_of(options);
  const std::vector<char*> argv = pointers(arguments), environment = pointers(entries);
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return system_error("opening a pipe");
  const int err = open(options.stderr_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (err < 0) {
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return system_error("opening " + options.stderr_file.string());
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_child(argv.data(), environment.data(), pipe_ends[1], err, parent);
  close(pipe_ends[1]);
  close(err);
  if (child < 0) {
    close(pipe_ends[0]);
    return system_error("starting " + options.arguments.front());
  }
  const ProcessEnd end = Watch(options, child, pipe_ends[0]).until_end();
  close(pipe_ends[0]);
  return end;
}

}  // namespace mbb::suites
