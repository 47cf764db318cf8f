// nvidia-smi as a child process, and the shell that outlives us.
#include "profiler/host/boost_slider.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

constexpr int kNotStarted = 127;

struct Answer {
  int status = -1;
  std::string text;
};

Result<pid_t> start(std::vector<std::string> words, int standard_input, int standard_output) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (standard_input >= 0) dup2(standard_input, STDIN_FILENO);
    if (standard_output >= 0) {
      dup2(standard_output, STDOUT_FILENO);
      dup2(standard_output, STDERR_FILENO);
    }
    execvp(argv[0], argv.data());
    _exit(kNotStarted);
  }
  if (child < 0) return fail(ErrorCode::kIo, fmt::format("starting {}: {}", words[0], std::strerror(errno)));
  return child;
}

int wait_for(pid_t child) {
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Result<Answer> nvidia_smi(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"nvidia-smi", "boost-slider"});
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(ErrorCode::kIo, fmt::format("a pipe to nvidia-smi: {}", std::strerror(errno)));
  auto child = start(std::move(arguments), -1, ends[1]);
  close(ends[1]);
  Answer answer;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; child && (got = read(ends[0], buffer.data(), buffer.size())) > 0;)
    answer.text.append(buffer.data(), static_cast<size_t>(got));
  close(ends[0]);
  if (!child) return tl::unexpected<Error>(child.error());
  answer.status = wait_for(*child);
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == kNotStarted)
    return fail(ErrorCode::kUnavailable, "there is no nvidia-smi",
                "the boost slider is set through nvidia-smi: put it on PATH");
  return answer;
}

Status set_slider(int gpu, int value) {
  MB_ASSIGN(const Answer answer, nvidia_smi({"--vboost", std::to_string(value), "-i", std::to_string(gpu)}));
  if (answer.status == 0) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("setting vboost {} on GPU {}: {}", value, gpu, printable(trim(answer.text), 300)),
              "changing the boost slider needs administrator rights on this host");
}

}  // namespace

Result<BoostSlider> parse_boost_slider(const std::string& text) {
  for (const std::string_view line : split(text, '\n')) {
    const size_t at = to_lower(line).find("vboost");
    if (at == std::string::npos) continue;
    std::vector<int> numbers;
    for (size_t i = at; i < line.size();) {
      size_t end = i;
      while (end < line.size() && line[end] >= '0' && line[end] <= '9') ++end;
      if (end > i && end - i < 5) numbers.push_back(static_cast<int>(*parse_int(line.substr(i, end - i))));
      i = std::max(end, i + 1);
    }
    if (numbers.size() < 2) continue;
    return BoostSlider{numbers.back(), numbers[numbers.size() - 2]};
  }
  return fail(ErrorCode::kUnavailable, "nvidia-smi names no vboost slider",
              "this card or driver has none: leave host.vboost at -1");
}

Result<BoostSlider> read_boost_slider(int gpu) {
  MB_ASSIGN(const Answer answer, nvidia_smi({"-l", "-i", std::to_string(gpu)}));
  if (answer.status != 0)
    return fail(ErrorCode::kUnavailable,
                fmt::format("reading the boost slider of GPU {}: {}", gpu, printable(trim(answer.text), 300)));
  return parse_boost_slider(answer.text);
}

Result<std::unique_ptr<BoostGuard>> BoostGuard::set(int gpu, int value) {
  MB_ASSIGN(const BoostSlider before, read_boost_slider(gpu));
  if (value < 0 || value > before.most)
    return fail(ErrorCode::kBadArgument, fmt::format("host.vboost = {} is outside 0 to {}", value, before.most),
                "nvidia-smi boost-slider -l shows what the card takes");
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(ErrorCode::kIo, fmt::format("a pipe to the restoring shell: {}", std::strerror(errno)));
  // The shell reads until nobody holds the other end: closed by the destructor, or by the kernel when we die.
  const std::string script =
      fmt::format("trap '' INT TERM HUP; read -r line; exec nvidia-smi boost-slider --vboost {} -i {} >/dev/null 2>&1",
                  before.value, gpu);
  auto restorer = start({"sh", "-c", script}, ends[0], -1);
  close(ends[0]);
  if (!restorer) {
    close(ends[1]);
    return tl::unexpected<Error>(restorer.error());
  }
  std::unique_ptr<BoostGuard> guard(new BoostGuard(before.value, ends[1], *restorer));
  MB_TRY(set_slider(gpu, value));
  MB_ASSIGN(const BoostSlider now, read_boost_slider(gpu));
  if (now.value != value)
    return fail(ErrorCode::kUnavailable, fmt::format("GPU {} kept vboost {} when asked for {}", gpu, now.value, value));
  return guard;
}

BoostGuard::~BoostGuard() {
  close(pipe_);
  wait_for(restorer_);
}

}  // namespace mbb::profiler
