// Launch children of this process, and the processes that an MPI launcher started beside rank 0's.
#include "suites/runner/launch_process.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/runner/child.h"
#include "trainer/comm/process_place.h"
#include "trainer/run/knobs.h"
#include "trainer/run/launch_environment.h"

namespace mbb::suites {
namespace {

// mpirun ends all its processes when one leaves without MPI's blessing, and rank 0 still writes the run. Others mind a
// status only, and this one will be 0.
void wait_for_the_launcher(const std::atomic<bool>* stop) {
  constexpr int64_t kLimitNs = 60'000'000'000;
  const Stopwatch watch;
  while (watch.elapsed_ns() < kLimitNs && !(stop != nullptr && stop->load()))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
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
  const auto said = read_file(folder / kLaunchLogFile);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  MB_TRY(end);
  if (end->exit_status == 0 && end->signal == 0) return 0;
  if (!joined && !end->stopped)
    return fail(ErrorCode::kRankFailed, fmt::format("a rank ended before it met the others: {}",
                                                    said ? printable(trim(*said), 800) : "without a word"));
  if (const auto place = trainer::place_if_any(); place && place->launcher == trainer::Launcher::kMpi)
    wait_for_the_launcher(options.stop);
  return 0;
}

}  // namespace mbb::suites
