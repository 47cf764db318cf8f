// fork and exec of this host's ranks, and their last words.
#include "suites/runner/local_ranks.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/runner/child.h"
#include "suites/runner/log_tail.h"
#include "suites/runner/process.h"
#include "trainer/comm/process_place.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

constexpr int kGraceMs = 10'000;

Status system_error(const std::string& what) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(errno)));
}

// They stay in the launch's process group, so that whoever ends that ends them too.
[[noreturn]] void become_rank(char* const* argv, int rank, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  setenv("MBBENCH_RANK", std::to_string(rank).c_str(), 1);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(argv[0], argv);
  _exit(127);
}

// On the CPU, and where they share a GPU, ranks are threads.
bool starts_ranks(const trainer::Config& config) {
  return config.host.device == trainer::Device::kCuda && !config.host.share_device;
}

}  // namespace

Result<std::unique_ptr<LocalRanks>> LocalRanks::start(const std::filesystem::path& folder, int ranks,
                                                      const std::string& program) {
  std::unique_ptr<LocalRanks> started(new LocalRanks());
  started->folder_ = folder / "ranks";
  MB_ASSIGN(const std::string config, read_file(folder / kLaunchConfigFile));
  std::filesystem::path meeting = folder / "meet";
  std::error_code ignored;
  std::filesystem::remove(meeting, ignored);
  setenv("MBBENCH_RANKS", std::to_string(ranks).c_str(), 1);
  setenv("MBBENCH_MEET_AT", ("file:" + std::filesystem::absolute(meeting).string()).c_str(), 1);
  const pid_t parent = getpid();
  for (int rank = 1; rank < ranks; ++rank) {
    const std::filesystem::path own = started->folder_ / std::to_string(rank);
    MB_TRY(make_dirs(own));
    MB_TRY(write_file(own / kLaunchConfigFile, config));
    Rank made{-1, own / kLaunchLogFile};
    const int log = open(made.log.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
    if (log < 0) return tl::unexpected<Error>(system_error(made.log.string()).error());
    std::string name = program, command = kLaunchCommand, place = own.string();
    char* const argv[] = {name.data(), command.data(), place.data(), nullptr};
    made.process = fork();
    if (made.process == 0) become_rank(argv, rank, log, parent);
    close(log);
    if (made.process < 0) return tl::unexpected<Error>(system_error(fmt::format("starting rank {}", rank)).error());
    started->ranks_.push_back(std::move(made));
  }
  setenv("MBBENCH_RANK", "0", 1);
  return started;
}

void LocalRanks::end() {
  for (int waited = 0; waited < kGraceMs; waited += 20) {
    bool running = false;
    for (Rank& rank : ranks_) {
      if (rank.process > 0 && waitpid(rank.process, nullptr, WNOHANG) == rank.process) rank.process = -1;
      running = running || rank.process > 0;
    }
    if (!running) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (const Rank& rank : ranks_) {
    if (rank.process <= 0) continue;
    kill(rank.process, SIGKILL);
    waitpid(rank.process, nullptr, 0);
  }
  for (Rank& rank : ranks_) rank.process = -1;
}

std::vector<std::filesystem::path> LocalRanks::folders() const {
  std::vector<std::filesystem::path> all;
  for (const Rank& rank : ranks_) all.push_back(rank.log.parent_path());
  return all;
}

Status LocalRanks::check() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    int status = 0;
    if (rank.process <= 0 || waitpid(rank.process, &status, WNOHANG) != rank.process) continue;
    rank.process = -1;
    const std::string log = read_file(rank.log).value_or("");
    const std::string words = last_lines(log);
    const Error said =
        error_said(log).value_or(Error{ErrorCode::kRankFailed, words.empty() ? "without a word" : words, {}});
    return fail(ErrorCode::kRankFailed,
                fmt::format("rank {} ended {} before it met the others: {}", i + 1,
                            WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                                                : fmt::format("with status {}", WEXITSTATUS(status)),
                            said.what),
                said.hint);
  }
  return {};
}

bool ranks_are_processes(const trainer::Config& config, int ranks) {
  return ranks > 1 && (starts_ranks(config) || trainer::place_if_any());
}

Result<std::unique_ptr<LocalRanks>> local_ranks_of(const trainer::Config& config, const std::filesystem::path& folder) {
  if (!starts_ranks(config) || trainer::place_if_any()) return std::unique_ptr<LocalRanks>();
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
  if (layout.mesh.world_size() == 1) return std::unique_ptr<LocalRanks>();
  MB_ASSIGN(const std::string program, own_program());
  return LocalRanks::start(folder, layout.mesh.world_size(), program);
}

}  // namespace mbb::suites
