// Launch children of this process, and the processes that an MPI launcher started beside rank 0's.
#include "suites/runner/launch_process.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/runner/child.h"
#include "suites/runner/log_tail.h"
#include "trainer/comm/process_place.h"
#include "trainer/run/knobs.h"
#include "trainer/run/launch_environment.h"

namespace mbb::suites {
namespace {

// Launchers end all their processes when one leaves with an error (mpirun, torchrun, srun -K), and rank 0 has yet to
// write the run that broke; what it leaves with then ends the others. Those that are left alone say by themselves how
// the run ended: where all of rank 0 was killed nobody else can. True: this process was asked to end.
bool wait_for_the_launcher(const std::atomic<bool>* stop) {
  constexpr int64_t kLimitNs = 60'000'000'000, kWithoutMpiNs = 6'000'000'000;
  const auto place = trainer::place_if_any();
  const int64_t limit_ns = place && place->launcher == trainer::Launcher::kMpi ? kLimitNs : kWithoutMpiNs;
  const Stopwatch watch;
  const auto asked = [&] { return stop != nullptr && stop->load(); };
  while (watch.elapsed_ns() < limit_ns && !asked()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return asked();
}

// What this process's rank said last, or that it said nothing.
Error end_of_rank(const ProcessEnd& end, const std::string& log) {
  if (auto said = error_said(log)) return std::move(*said);
  const auto place = trainer::place_if_any();
  const std::string words = last_lines(log);
  return {ErrorCode::kRankFailed,
          fmt::format("rank {}: its process ended {}{}{}", place ? place->rank : 0,
                      end.signal != 0 ? fmt::format("by signal {}", end.signal)
                                      : fmt::format("with status {}", end.exit_status),
                      words.empty() ? "" : ": ", words),
          "rank 0 says where each rank stood"};
}

}  // namespace

namespace {

// Whether the file of this program still is what runs here: one that was built or installed anew meanwhile is another
// product, and the record of the run names the first.
Status check_not_replaced(std::string program) {
  constexpr std::string_view kGone = " (deleted)";  // as the kernel calls it
  if (program.ends_with(kGone)) program.resize(program.size() - kGone.size());
  struct stat here {
  }, there{};
  const bool same = ::stat("/proc/self/exe", &here) == 0 && ::stat(program.c_str(), &there) == 0 &&
                    here.st_dev == there.st_dev && here.st_ino == there.st_ino;
  if (same) return {};
  return fail(
      ErrorCode::kMismatch,
      fmt::format("the program {} was replaced while it ran: its launches would be of another product", program),
      "start a new run; let no build or installation write over a program that measures");
}

}  // namespace

Result<ProcessOptions> launch_process(const trainer::Config& config, const std::filesystem::path& folder,
                                      const RunOptions& options) {
  // Another program has other knobs: it is told only what was set.
  const bool ours = options.program.empty();
  const std::string lines = ours ? trainer::knobs().to_lines(config) : changed_lines(config);
  MB_TRY(write_file(folder / kLaunchConfigFile, lines));
  MB_ASSIGN(const std::string own, own_program());
  ProcessOptions process;
  if (ours) MB_TRY(check_not_replaced(own));
  process.arguments = {options.program.empty() ? own : options.program, kLaunchCommand, folder.string()};
  process.environment = trainer::launch_environment(config);
  process.stderr_file = folder / kLaunchLogFile;
  process.stop = options.stop;
  // The child speaks first: it knows where each rank stands.
  constexpr int64_t kMarginMs = 60'000;
  process.silence_limit_ms = std::max(process.silence_limit_ms, config.host.no_progress_limit_s * 1'000 + kMarginMs);
  return process;
}

Result<int> follow_run(const trainer::Config& config, const RunOptions& options) {
  const std::filesystem::path folder =
      std::filesystem::path(env_text("TMPDIR").value_or("/tmp")) / fmt::format("mbbench-rank-{}", getpid());
  MB_TRY(make_dirs(folder));
  MB_ASSIGN(ProcessOptions process, launch_process(config, folder, options));
  bool joined = false;
  process.on_line = [&](std::string_view line) { joined = joined || line == kJoinedLine; };
  const auto end = run_process(process);
  const std::string said = read_file(folder / kLaunchLogFile).value_or("");
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  MB_TRY(end);
  if (end->exit_status == 0 && end->signal == 0) return 0;
  const bool asked = (joined || end->stopped) && wait_for_the_launcher(options.stop);
  if (end->stopped || end->exit_status == kExitAsked) return 0;
  if (asked) return kExitAsked;
  return tl::unexpected<Error>(end_of_rank(*end, said));
}

}  // namespace mbb::suites
