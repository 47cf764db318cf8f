// Launches a cell's processes and judges how they ended.
#include "suites/runner/cell_runner.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "analysis/metrics/block_time.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/planned_memory.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/host/boost_slider.h"
#include "profiler/host/gpus.h"
#include "profiler/trace/trace_file.h"
#include "suites/runner/child.h"
#include "suites/runner/command_canary.h"
#include "suites/runner/command_cell.h"
#include "suites/runner/drift.h"
#include "suites/runner/health.h"
#include "suites/runner/launch_process.h"
#include "suites/runner/local_ranks.h"
#include "suites/runner/log_tail.h"
#include "suites/runner/planned_metrics.h"
#include "suites/runner/planning.h"
#include "suites/runner/possible_rate.h"
#include "suites/runner/reason.h"
#include "trainer/comm/places.h"
#include "trainer/run/knobs.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

std::string last_lines_of(const std::filesystem::path& file) {
  const auto text = read_file(file, size_t{1} << 20);
  return text ? last_lines(*text) : std::string();
}

// The boost sliders of a cell's GPUs for as long as it runs.
class BoostGuards {
 public:
  Status set(int64_t value, int gpus) {
    for (int gpu = 0; value >= 0 && gpu < gpus; ++gpu) {
      MB_ASSIGN(auto guard, profiler::BoostGuard::set(profiler::nvml_index_of(gpu), static_cast<int>(value)));
      guards_.push_back(std::move(guard));
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<profiler::BoostGuard>> guards_;
};

// Where each rank stood when the process was killed; empty when it ended by itself and says so.
std::string places_of(const ProcessEnd& end, const std::filesystem::path& file) {
  std::string text;
  if (end.signal != 0 || end.timed_out)
    if (const auto read = trainer::read_places(file)) text = fmt::format(" [{}]", *read);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  return text;
}

// Which rank a launch's process was, and where it stood last; empty where it held all of them.
std::string rank_of_process(const trainer::Config& config, int ranks, const std::string& places) {
  if (!ranks_are_processes(config, ranks)) return {};
  const size_t first = places.find("rank 0 ");  // places begin with it
  const std::string rank = first == std::string::npos ? "rank 0" : places.substr(first, places.find(';') - first);
  return rank + ": its process ";
}

void judge_end(const ProcessEnd& end, baselines::Launch& launch, const std::filesystem::path& folder,
               const std::string& whose, const std::string& places, baselines::Cell& cell) {
  if (end.exit_status == 0 && end.signal == 0) return;
  cell.status = end.exit_status == kExitDoesNotFit ? CellStatus::kSkipped : CellStatus::kBroken;
  const std::string said = last_lines_of(folder / kLaunchLogFile);
  if (end.timed_out)
    launch.reason = "no progress within the time limit; killed" + places;
  else if (end.signal != 0)
    launch.reason =
        fmt::format("{}ended by signal {}{}{}{}", whose, end.signal, said.empty() ? "" : ": ", said, places);
  else if (launch.reason.empty())
    launch.reason = fmt::format("exit status {}{}{}", end.exit_status, said.empty() ? "" : ": ", said);
  cell.reason = launch.reason;
}

Status add_breakdowns(const baselines::Launch& launch, const std::filesystem::path& folder,
                      std::vector<analysis::StepBreakdown>& breakdowns) {
  for (const std::string& file : launch.trace_files) {
    MB_ASSIGN(const profiler::Trace trace, profiler::read_trace(folder / file));
    for (const auto& step : analysis::break_down(trace, {.per_op = false})) breakdowns.push_back(step.breakdown);
  }
  return {};
}

// Of a canary that ran then; 0: never.
bool is_fresh(int64_t then_ns) {
  constexpr int64_t kFreshNs = 2'000'000'000;
  return then_ns != 0 && monotonic_ns() - then_ns <= kFreshNs;
}

}  // namespace

Status CellRunner::launch(const Cell& planned, baselines::Cell& cell, int index, Left& left) {
  if (stopped_ || cell.status != CellStatus::kOk) return {};
  if (planned.command) return launch_command_of(planned, cell, index, left);
  BoostGuards boost;
  if (const Status set = boost.set(planned.config.host.vboost, cell.ranks); !set) {
    cell.status = CellStatus::kSkipped;
    cell.reason = reason_of(set.error());
    return {};
  }
  return launch_trainer(planned, cell, index, left);
}

Status CellRunner::settle(const Cell& planned, baselines::Cell& cell, const Left& left) {
  if (stopped_ || cell.status != CellStatus::kOk) return {};
  cell.loss_checksum = cell.launches.front().loss_checksum;
  judge_canaries(cell);
  if (planned.command) {
    settle_command(planned, cell, left.logs);
    return {};
  }
  const auto filled =
      analysis::fill_metrics(cell, left.breakdowns, trainer::is_quantized(planned.config.precision.recipe));
  if (!filled) {
    cell.status = CellStatus::kUnstable;
    cell.reason = filled.error().what;
  }
  MB_TRY(judge_drifts(cell));
  if (!filled) return {};
  analysis::add_planned_memory(cell);
  analysis::add_block_time(cell);
  const Planning planning;
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(planned.config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  judge_rate(planned.config.precision.recipe, cell);
  return add_planned_metrics(layout, programs, cell);
}

void CellRunner::on_line(std::string_view line) {
  long long done = 0;
  long long of = 0;
  double loss = 0;
  if (std::sscanf(std::string(line).c_str(), "step %lld %lld %lf", &done, &of, &loss) == 3)
    progress_.step(done, of, loss);
}

// Of launches whose clocks were watched.
Status CellRunner::judge_drifts(baselines::Cell& cell) {
  for (const baselines::Launch& launch : cell.launches) {
    MB_ASSIGN(const std::filesystem::path folder, writer_.launch_folder(cell.name, launch.index));
    if (const auto steps = read_clocked_steps(launch, folder)) judge_drift(cell, launch, *steps);
  }
  return {};
}

// The user's own command, once.
Status CellRunner::launch_command_of(const Cell& planned, baselines::Cell& cell, int index, Left& left) {
  MB_ASSIGN(const std::filesystem::path folder, writer_.launch_folder(cell.name, index));
  const auto on_step = [&](const LoggedStep& step) {
    progress_.step(step.index, planned.config.train.train_iters, step.loss);
  };
  const Canary before = canary_now();
  const size_t gpus = gpus_here(cell);
  const std::vector<Canary> gpus_before =
      gpu_canaries_.size() == gpus && is_fresh(gpu_canaries_ns_) ? gpu_canaries_ : time_gpus(gpus);
  MB_ASSIGN(CommandLaunch done, launch_command(planned, cell, index, folder, options_.stop, on_step));
  stopped_ = done.end.stopped;
  if (stopped_) return {};
  record_canary(done.launch, before, canary_after());
  gpu_canaries_ = time_gpus(gpus);
  gpu_canaries_ns_ = monotonic_ns();
  for (size_t gpu = 0; gpu < std::min(gpus_before.size(), gpu_canaries_.size()); ++gpu)
    record_canary(done.launch, gpus_before[gpu], gpu_canaries_[gpu], static_cast<int>(gpu));
  if (!done.launch.reason.empty()) {
    cell.status = CellStatus::kBroken;
    cell.reason = done.launch.reason;
  }
  if (const auto telemetry = launch_telemetry(folder)) judge_health(cell, done.launch, *telemetry);
  cell.launches.push_back(std::move(done.launch));
  left.logs.push_back(std::move(done.log));
  return {};
}

Status CellRunner::write_stopping_rule(const trainer::Config& config, const std::filesystem::path& folder) const {
  double interval = options_.interval_pct;
  const bool given = options_.steady_steps > 0 || interval > 0;
  if (!given && config.host.device == trainer::Device::kCuda) interval = options_.gpu_interval_pct;
  if (options_.steady_steps == 0 && interval == 0) return {};
  return write_file(folder / kStoppingRuleFile, fmt::format("{} {}\n", options_.steady_steps, interval));
}

Status CellRunner::launch_trainer(const Cell& planned, baselines::Cell& cell, int index, Left& left) {
  MB_ASSIGN(const std::filesystem::path folder, writer_.launch_folder(cell.name, index));
  MB_TRY(write_stopping_rule(planned.config, folder));
  MB_ASSIGN(ProcessOptions process, launch_process(planned.config, folder, options_));
  process.on_line = [&](std::string_view line) { on_line(line); };
  const Canary before = canary_now();
  const int64_t started = wall_ns();
  MB_ASSIGN(const ProcessEnd end, run_process(process));
  const std::string places = places_of(end, folder / kPlacesFile);
  // A failure that the stop only followed (a launcher stops all its processes when one dies) is a failure.
  if (end.stopped && end.exit_status != kExitFailed) {
    stopped_ = true;
    return {};
  }
  auto launch = baselines::read_launch(folder);
  if (!launch) {
    baselines::Launch lost;
    lost.index = index;
    lost.started_unix_ns = started;
    lost.ended_unix_ns = wall_ns();
    launch = lost;
  }
  launch->index = index;
  launch->exit_status = end.exit_status;
  launch->signal = end.signal;
  record_canary(*launch, before, canary_after());
  judge_end(end, *launch, folder, rank_of_process(planned.config, cell.ranks, places), places, cell);
  if (const auto telemetry = launch_telemetry(folder)) judge_health(cell, *launch, *telemetry);
  if (cell.status == CellStatus::kOk) MB_TRY(add_breakdowns(*launch, folder, left.breakdowns));
  cell.launches.push_back(std::move(*launch));
  return {};
}

Canary CellRunner::canary_now() {
  if (!is_fresh(canary_ns_)) canary_ = run_canary();
  return canary_;
}

Canary CellRunner::canary_after() {
  canary_ = run_canary();
  canary_ns_ = monotonic_ns();
  return canary_;
}

}  // namespace mbb::suites
