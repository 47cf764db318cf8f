// The parent's side: plan, launch, judge, finish, store.
#include "suites/runner/runner.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

#include "analysis/exposure/breakdown.h"
#include "analysis/metrics/block_time.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/planned_memory.h"
#include "analysis/report/suite_table.h"
#include "baselines/store/bundle.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/boost_slider.h"
#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/gpus.h"
#include "profiler/trace/trace_file.h"
#include "suites/project/projector.h"
#include "suites/runner/canary.h"
#include "suites/runner/cell_inputs.h"
#include "suites/runner/child.h"
#include "suites/runner/claim_verdicts.h"
#include "suites/runner/command_cell.h"
#include "suites/runner/drift.h"
#include "suites/runner/equality.h"
#include "suites/runner/health.h"
#include "suites/runner/idle_notes.h"
#include "suites/runner/launch_process.h"
#include "suites/runner/log_tail.h"
#include "suites/runner/memory_rows.h"
#include "suites/runner/plan_probe.h"
#include "suites/runner/possible_rate.h"
#include "suites/runner/process.h"
#include "suites/runner/program_build.h"
#include "suites/runner/progress.h"
#include "suites/runner/published_beside.h"
#include "suites/runner/reason.h"
#include "suites/runner/recorded_gradients.h"
#include "suites/runner/routing_input.h"
#include "suites/runner/sequence_work.h"
#include "suites/runner/twin_run.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/comm/places.h"
#include "trainer/models/hardware.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

std::vector<baselines::KnobValue> knob_values(const Cell& cell) {
  std::vector<baselines::KnobValue> values;
  for (const KnobState& state : knob_states(cell.config, cell.sources)) {
    const bool from_file = state.source.line > 0;
    values.push_back({state.knob->key, state.value, name(state.source.layer), from_file ? state.source.place : "",
                      state.source.line, splits_series(state)});
  }
  return values;
}

constexpr const char* kUsualHardware = "h100-sxm";

// A cell that asks for GPUs is measured on all of them, else projected, else skipped with the reason.
void place_on_gpus(baselines::Cell& cell, const trainer::HostConfig& host, const RunOptions& options,
                   const std::string& hardware) {
  const profiler::GpuInventory found = profiler::list_gpus();
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.device = found.gpus.empty() ? "cuda" : found.gpus.front().model;
  if (host.share_device) cell.gpus = std::min(cell.ranks, std::max(1, static_cast<int>(found.gpus.size())));
  cell.devices = cell.gpus;
  if (static_cast<int>(found.gpus.size()) >= cell.gpus) return;
  if (const auto known = trainer::find_hardware(hardware); known && options.project) {
    cell.result_class = baselines::ResultClass::kProjected;
    cell.device = known->device_name;
    cell.devices = 0;
    return;
  }
  cell.status = CellStatus::kSkipped;
  cell.reason = fmt::format("needs {} GPU{}, this machine has {}{}", cell.gpus, cell.gpus == 1 ? "" : "s",
                            found.gpus.size(), found.note.empty() ? "" : " (" + found.note + ")");
}

// A step that cannot fit is skipped before anything runs; its memory map stays, to look at.
void check_fit(baselines::Cell& cell, const trainer::Layout& layout, const trainer::StepPrograms& programs,
               const std::string& hardware) {
  int64_t capacity = 0;
  const bool projected = cell.result_class == baselines::ResultClass::kProjected;
  if (projected) {
    if (const auto known = trainer::find_hardware(hardware)) capacity = plan_capacity_bytes(*known);
  } else if (layout.config.host.device == trainer::Device::kCuda)
    if (const auto gpus = profiler::list_gpus().gpus; !gpus.empty()) capacity = gpus.front().memory_bytes;
  if (const Status fits = trainer::check_memory(layout, programs, capacity); !fits) {
    cell.status = CellStatus::kSkipped;
    const std::string& what = fits.error().what;
    // The largest tensors and the remedies stand in the plan, which the cell keeps; a table has a line for it.
    cell.reason = projected ? fmt::format("does not fit {}: {}", hardware, what.substr(0, what.find(';')))
                            : reason_of(fits.error());
  }
}

// Whether the cell's device computes the recipe's numbers in formats of its own. A device outside the table is taken to
// have what its executor runs.
bool emulates(const baselines::Cell& cell, trainer::Recipe recipe) {
  if (cell.device == "cpu") return trainer::is_quantized(recipe);
  const auto known = trainer::match_device(cell.device);
  return known && !trainer::runs_natively(recipe, known->compute_major, known->compute_minor);
}

// The full model of a proxy, which has fewer layers; empty for a whole one.
std::string proxied_model(const trainer::ModelConfig& model) {
  const auto whole = trainer::find_model(model.name);
  return whole && model.num_layers > 0 && model.num_layers < whole->num_layers ? whole->name : "";
}

// What every record says, whatever the cell is.
baselines::Cell named_cell(const Cell& planned, int index, const std::string& run) {
  baselines::Cell cell;
  cell.run = run;
  cell.name = planned.name;
  cell.index = index;
  cell.device = "cpu";
  cell.knobs = knob_values(planned);
  cell.published = planned.published;
  cell.model = planned.config.model.name;
  return cell;
}

// The record of a cell before it runs: everything that the configuration alone says.
baselines::Cell describe_cell(const Cell& planned, int index, const std::string& run, const RunOptions& options,
                              const std::string& hardware, DataHashes& data) {
  baselines::Cell cell = named_cell(planned, index, run);
  if (planned.config.host.device == trainer::Device::kCuda)
    cell.result_class = options.project ? baselines::ResultClass::kProjected : baselines::ResultClass::kMeasured;
  if (planned.skipped) {
    cell.status = CellStatus::kSkipped;
    cell.reason = planned.skipped->reason;
    return cell;
  }
  if (planned.command) {
    describe_command(planned, cell);
    return cell;
  }
  const auto layout = trainer::resolve(planned.config);
  if (!layout) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(layout.error());
    return cell;
  }
  cell.ranks = cell.gpus = layout->mesh.world_size();
  cell.proxy_of = proxied_model(planned.config.model);
  if (planned.config.host.device == trainer::Device::kCuda) {
    place_on_gpus(cell, planned.config.host, options, hardware);
    if (cell.published.empty()) cell.published = published_beside(*layout, hardware);
  }
  if (planned.config.host.vboost >= 0 && !options.allow_clock_changes) {
    cell.status = CellStatus::kSkipped;
    cell.reason =
        fmt::format("host.vboost = {} changes clocks, which needs --allow-clock-changes", planned.config.host.vboost);
  }
  cell.numerics_only = emulates(cell, planned.config.precision.recipe) || planned.config.host.share_device;
  if (cell.numerics_only && cell.result_class == baselines::ResultClass::kProjected) {
    cell.status = CellStatus::kSkipped;
    cell.reason = fmt::format("{} has no {}, and emulated steps are not projected", hardware,
                              trainer::recipe_name(planned.config));
  }
  const auto programs = trainer::build_programs(*layout);
  if (!programs) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(programs.error());
    return cell;
  }
  const auto work = step_work(*layout, *programs);
  if (!work) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(work.error());
    return cell;
  }
  cell.work = *work;
  cell.memory = memory_maps(*layout, *programs);
  cell.program_json = trainer::explain_json(*layout, *programs);
  cell.program_hash = trainer::program_hash(*programs);
  if (cell.result_class != baselines::ResultClass::kProjected) cell.data_hash = data.of(*layout);
  cell.identity_hash = baselines::identity_hash(cell);
  if (cell.status == CellStatus::kOk) check_fit(cell, *layout, *programs, hardware);
  return cell;
}

// What of a cell's description meets our own checks.
void plan_once(const Cell& cell) {
  if (cell.skipped || cell.command) return;
  if (const auto layout = trainer::resolve(cell.config)) static_cast<void>(trainer::build_programs(*layout));
}

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

// What follows from the configuration beside what was measured: FP8-eligible FLOPs, HFU from recompute's FLOPs, the
// rows' efficiency.
Status add_planned_metrics(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                           baselines::Cell& cell) {
  const trainer::Explain costs = trainer::explain(layout, programs);
  if (costs.model_flops > 0) {
    analysis::add_eligible_flops(cell, costs.eligible_flops / costs.model_flops);
    analysis::add_hardware_utilization(cell, costs.recompute_flops / costs.model_flops);
  }
  if (layout.has_sequences()) {
    MB_ASSIGN(const SequenceWork work, sequence_work(layout));
    add_sequence_metrics(cell, work);
  }
  return {};
}

class CellRunner {
 public:
  CellRunner(baselines::BundleWriter& writer, const RunOptions& options, Progress& progress)
      : writer_(writer), options_(options), progress_(progress) {}

  bool stopped() const { return stopped_; }

  // What launches leave beside their records, until the cell is settled.
  struct Left {
    std::vector<analysis::StepBreakdown> breakdowns;
    std::vector<TrainingLog> logs;  // of a command
  };

  // One launch, where the cell is still ok and nobody stopped us.
  Status launch(const Cell& planned, baselines::Cell& cell, int index, Left& left) {
    if (stopped_ || cell.status != CellStatus::kOk) return {};
    if (planned.command) return launch_command_of(planned, cell, index, left);
    BoostGuards boost;
    if (const Status set = boost.set(planned.config.host.vboost, cell.ranks); !set) {
      cell.status = CellStatus::kSkipped;
      cell.reason = reason_of(set.error());
      return {};
    }
    return launch_trainer(planned, cell, index, left.breakdowns);
  }

  // Metrics and verdicts on the machine, after the last launch.
  Status settle(const Cell& planned, baselines::Cell& cell, const Left& left) {
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
    MB_ASSIGN(const trainer::Layout layout, trainer::resolve(planned.config));
    MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
    judge_rate(planned.config.precision.recipe, cell);
    return add_planned_metrics(layout, programs, cell);
  }

  // "step DONE OF LOSS", as children print it.
  void on_line(std::string_view line) {
    long long done = 0;
    long long of = 0;
    double loss = 0;
    if (std::sscanf(std::string(line).c_str(), "step %lld %lld %lf", &done, &of, &loss) == 3)
      progress_.step(done, of, loss);
  }

 private:
  // Of launches whose clocks were watched.
  Status judge_drifts(baselines::Cell& cell) {
    for (const baselines::Launch& launch : cell.launches) {
      MB_ASSIGN(const std::filesystem::path folder, writer_.launch_folder(cell.name, launch.index));
      if (const auto steps = read_clocked_steps(launch, folder)) judge_drift(cell, launch, *steps);
    }
    return {};
  }

  // The user's own command, once.
  Status launch_command_of(const Cell& planned, baselines::Cell& cell, int index, Left& left) {
    MB_ASSIGN(const std::filesystem::path folder, writer_.launch_folder(cell.name, index));
    const auto on_step = [&](const LoggedStep& step) {
      progress_.step(step.index, planned.config.train.train_iters, step.loss);
    };
    const Canary before = canary_now();
    MB_ASSIGN(CommandLaunch done, launch_command(planned, cell, index, folder, options_.stop, on_step));
    stopped_ = done.end.stopped;
    if (stopped_) return {};
    record_canary(done.launch, before, canary_after());
    if (!done.launch.reason.empty()) {
      cell.status = CellStatus::kBroken;
      cell.reason = done.launch.reason;
    }
    if (const auto telemetry = launch_telemetry(folder)) judge_health(cell, done.launch, *telemetry);
    cell.launches.push_back(std::move(done.launch));
    left.logs.push_back(std::move(done.log));
    return {};
  }

  Status write_stopping_rule(const trainer::Config& config, const std::filesystem::path& folder) const {
    double interval = options_.interval_pct;
    const bool given = options_.steady_steps > 0 || interval > 0;
    if (!given && config.host.device == trainer::Device::kCuda) interval = options_.gpu_interval_pct;
    if (options_.steady_steps == 0 && interval == 0) return {};
    return write_file(folder / kStoppingRuleFile, fmt::format("{} {}\n", options_.steady_steps, interval));
  }

  Status launch_trainer(const Cell& planned, baselines::Cell& cell, int index,
                        std::vector<analysis::StepBreakdown>& breakdowns) {
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
    judge_end(end, *launch, folder, places, cell);
    if (const auto telemetry = launch_telemetry(folder)) judge_health(cell, *launch, *telemetry);
    if (cell.status == CellStatus::kOk) MB_TRY(add_breakdowns(*launch, folder, breakdowns));
    cell.launches.push_back(std::move(*launch));
    return {};
  }

  // The canary after one launch is the one before the next, when that follows at once.
  Canary canary_now() {
    constexpr int64_t kFreshNs = 2'000'000'000;
    if (canary_ns_ == 0 || monotonic_ns() - canary_ns_ > kFreshNs) canary_ = run_canary();
    return canary_;
  }
  Canary canary_after() {
    canary_ = run_canary();
    canary_ns_ = monotonic_ns();
    return canary_;
  }

  // Where each rank stood when the process was killed; empty when it ended by itself and says so.
  static std::string places_of(const ProcessEnd& end, const std::filesystem::path& file) {
    std::string text;
    if (end.signal != 0 || end.timed_out)
      if (const auto read = trainer::read_places(file)) text = fmt::format(" [{}]", *read);
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
    return text;
  }

  static void judge_end(const ProcessEnd& end, baselines::Launch& launch, const std::filesystem::path& folder,
                        const std::string& places, baselines::Cell& cell) {
    if (end.exit_status == 0 && end.signal == 0) return;
    cell.status = end.exit_status == kExitDoesNotFit ? CellStatus::kSkipped : CellStatus::kBroken;
    const std::string said = last_lines_of(folder / kLaunchLogFile);
    if (end.timed_out)
      launch.reason = "no progress within the time limit; killed" + places;
    else if (end.signal != 0)
      launch.reason = fmt::format("ended by signal {}{}{}{}", end.signal, said.empty() ? "" : ": ", said, places);
    else if (launch.reason.empty())
      launch.reason = fmt::format("exit status {}{}{}", end.exit_status, said.empty() ? "" : ": ", said);
    cell.reason = launch.reason;
  }

  static Status add_breakdowns(const baselines::Launch& launch, const std::filesystem::path& folder,
                               std::vector<analysis::StepBreakdown>& breakdowns) {
    for (const std::string& file : launch.trace_files) {
      MB_ASSIGN(const profiler::Trace trace, profiler::read_trace(folder / file));
      for (const auto& step : analysis::break_down(trace, {.per_op = false})) breakdowns.push_back(step.breakdown);
    }
    return {};
  }

  baselines::BundleWriter& writer_;
  const RunOptions& options_;
  Progress& progress_;
  bool stopped_ = false;
  Canary canary_;
  int64_t canary_ns_ = 0;  // when it ran; 0: never
};

// One-rank cells run first: the others are compared with them.
std::vector<size_t> execution_order(const std::vector<baselines::Cell>& cells) {
  std::vector<size_t> order(cells.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto later = [&](size_t i) { return cells[i].ranks != 1 ? 2 : trains_in_fp32(cells[i]) ? 0 : 1; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return later(a) < later(b); });
  return order;
}

// Fills a cell from its projection; what the engine cannot say is skipped with its words.
Status project_cell(const Cell& planned, baselines::Cell& cell, const Suite& suite, const RunOptions& options,
                    ProjectionBasis& basis) {
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(planned.config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  const bool blocks = std::any_of(suite.claims.begin(), suite.claims.end(), [&](const Claim& claim) {
    return claim.metric == "block_time" && (claim.a == cell.name || claim.b == cell.name);
  });
  const std::string hardware = hardware_of(suite, options);
  const Status projected = options.project({layout, programs, hardware, blocks}, cell, basis);
  if (!projected) {
    const bool unknown = projected.error().code == ErrorCode::kUnavailable;
    cell.status = unknown ? CellStatus::kSkipped : CellStatus::kBroken;
    cell.reason =
        fmt::format("needs {} GPU{}, this machine has {}; not projected: {}", cell.ranks, cell.ranks == 1 ? "" : "s",
                    profiler::list_gpus().gpus.size(), reason_of(projected.error()));
    cell.metrics.clear();
    return {};
  }
  if (planned.published.empty()) add_published_error(cell, published_rate(layout, hardware));
  analysis::add_planned_memory(cell);
  return add_planned_metrics(layout, programs, cell);
}

// The verdict on the twin of a cell that asks for GPUs. False when the run was stopped meanwhile.
Result<bool> judge_twin(const Cell& planned, baselines::Cell& cell, TwinRunner& twins) {
  if (cell.status != CellStatus::kOk || planned.config.host.device != trainer::Device::kCuda || planned.command)
    return true;
  const auto twin = twin_of(planned.config);
  if (!twin) {
    add_twin_verdict(cell, twin.error());
    return true;
  }
  if (twin->is_trivial()) return true;
  MB_ASSIGN(const auto end, twins.run(*twin));
  if (!end) return false;
  add_twin_verdict(cell, *twin, *end);
  return true;
}

// A cell of the run's manifest that the suite no longer has would be missing in silence.
Status check_manifest(const baselines::Run& run, const Suite& suite) {
  for (const std::string& planned : run.planned_cells) {
    const auto named = [&](const auto& cell) { return cell.name == planned; };
    if (std::any_of(suite.cells.begin(), suite.cells.end(), named)) continue;
    if (std::any_of(run.cells.begin(), run.cells.end(), named)) continue;
    return fail(ErrorCode::kMismatch,
                fmt::format("run {} planned a cell '{}', which its suite no longer makes", run.id, printable(planned)),
                "a knob or rule changed since: start a new run");
  }
  return {};
}

// Cells of one run answer one question: what is left must be configured as what has finished was.
Status check_same_knobs(const baselines::Run& run, const Suite& suite) {
  for (const baselines::Cell& finished : run.cells) {
    const auto cell =
        std::find_if(suite.cells.begin(), suite.cells.end(), [&](const Cell& c) { return c.name == finished.name; });
    if (cell == suite.cells.end() || cell->command) continue;
    for (const KnobState& now : trainer::knobs().states(cell->config, cell->sources))
      for (const baselines::KnobValue& then : finished.knobs)
        if (then.key == now.knob->key && now.knob->identity && then.value != now.value)
          return fail(ErrorCode::kMismatch,
                      fmt::format("run {} has {} = {} in its finished cell {}, and would go on with {}", run.id,
                                  then.key, then.value, finished.name, now.value),
                      fmt::format("resume it with the knobs it was started with ({}={}), or start a new run", then.key,
                                  then.value));
  }
  return {};
}

void keep_in_store(const RunOptions& options, const baselines::Run& run, const std::filesystem::path& bundle,
                   const baselines::Cell* cell) {
  const auto put = [&]() -> Status {
    MB_ASSIGN(auto store, baselines::Store::open(store_file(options.runs_dir)));
    MB_TRY(store.put_run(run, bundle));
    return cell ? store.put_cell(*cell) : Status{};
  };
  if (const Status stored = put(); !stored)
    log_warning("the store was not updated ({}); the bundle is whole, `mbbench index runs_dir={}` brings it in",
                stored.error().what, options.runs_dir.string());
}

// Claims are judged when all cells are there; cells that got a verdict are written again.
Status judge_claims_of(baselines::BundleWriter& writer, const Suite& suite, const RunOptions& options,
                       RunOutcome& outcome) {
  if (outcome.stopped) return {};
  for (const size_t changed : judge_claims(suite.claims, outcome.run.cells, outcome.basis.ratio_error)) {
    MB_TRY(writer.finish_cell(outcome.run.cells[changed]));
    keep_in_store(options, outcome.run, writer.folder(), &outcome.run.cells[changed]);
  }
  return {};
}

// The cells of a run, one after another or in turns.
class CellLoop {
 public:
  CellLoop(baselines::BundleWriter writer, RunOutcome outcome, const Suite& suite, const RunOptions& options)
      : writer_(std::move(writer)),
        outcome_(std::move(outcome)),
        suite_(suite),
        options_(options),
        cells_(describe_cells(suite, options)),
        left_(cells_.size()),
        progress_(cells_.size() - outcome_.run.cells.size(), options.quiet),
        runner_(writer_, options_, progress_),
        twins_(writer_.folder() / "twins", options_, [this](std::string_view line) { runner_.on_line(line); }) {}

  Result<RunOutcome> run() {
    std::set<std::string> finished;
    for (const baselines::Cell& cell : outcome_.run.cells) finished.insert(cell.name);
    std::vector<size_t> order = execution_order(cells_);
    std::erase_if(order, [&](size_t i) { return finished.contains(cells_[i].name); });
    for (baselines::Cell& cell : cells_) cell.run = outcome_.run.id;
    keep_in_store(options_, outcome_.run, writer_.folder(), nullptr);
    if (options_.interleave) MB_TRY(launch_in_turns(order));
    for (const size_t i : order) {
      if (stopped()) break;
      if (!options_.interleave) {
        MB_TRY(begin(i));
        for (int launch = 0; launch < options_.launches; ++launch) MB_TRY(this->launch(i, launch));
      }
      MB_TRY(finish(i));
    }
    return close();
  }

 private:
  bool stopped() {
    if ((options_.stop && options_.stop->load()) || runner_.stopped()) outcome_.stopped = true;
    return outcome_.stopped;
  }

  Status launch_in_turns(std::vector<size_t> order) {
    for (const size_t i : order) MB_TRY(begin(i));
    for (int launch = 0; launch < options_.launches; ++launch) {
      for (const size_t i : order) MB_TRY(this->launch(i, launch));
      std::reverse(order.begin(), order.end());
    }
    return {};
  }

  Status begin(size_t i) {
    baselines::Cell& cell = cells_[i];
    if (options_.require_measured && cell.status == CellStatus::kOk &&
        cell.result_class != baselines::ResultClass::kMeasured) {
      cell.status = CellStatus::kSkipped;
      cell.reason = fmt::format("needs {} GPU{}; this machine offers {}", cell.gpus, cell.gpus == 1 ? "" : "s",
                                class_label(cell));
    }
    progress_.begin_cell(cell.name);
    return writer_.begin_cell(cell);
  }

  Status launch(size_t i, int index) {
    if (stopped() || cells_[i].result_class == baselines::ResultClass::kProjected) return {};
    if (options_.interleave) progress_.begin_cell(cells_[i].name);
    if (!suite_.cells[i].command)
      MB_TRY(give_routing(writer_, suite_.cells[i].config, cells_[i], index, {&outcome_.run.cells, &cells_}));
    return runner_.launch(suite_.cells[i], cells_[i], index, left_[i]);
  }

  // Settles, judges and keeps a cell whose launches are over.
  Status finish(size_t i) {
    baselines::Cell& cell = cells_[i];
    if (stopped()) return {};
    if (cell.status == CellStatus::kOk && cell.result_class == baselines::ResultClass::kProjected)
      MB_TRY(project_cell(suite_.cells[i], cell, suite_, options_, outcome_.basis));
    else
      MB_TRY(runner_.settle(suite_.cells[i], cell, left_[i]));
    left_[i] = {};
    if (options_.twins) {
      MB_ASSIGN(const bool went_on, judge_twin(suite_.cells[i], cell, twins_));
      outcome_.stopped = !went_on;
    }
    if (outcome_.stopped) return {};
    MB_TRY(judge(i));
    if (cell.status == CellStatus::kBroken) cell.metrics.clear();
    MB_TRY(writer_.finish_cell(cell));
    keep_in_store(options_, outcome_.run, writer_.folder(), &cell);
    if (options_.interleave) progress_.begin_cell(cell.name);  // another cell's launch was the last
    const std::string word = analysis::status_word(cell);
    progress_.end_cell(cell.status == CellStatus::kOk ? word : fmt::format("{}: {}", word, cell.reason));
    outcome_.run.cells.push_back(std::move(cell));
    return {};
  }

  // Of another trainer neither data nor seeds are known, so that its losses are held against nothing; a projection has
  // none.
  Status judge(size_t i) {
    if (suite_.cells[i].command || cells_[i].result_class == baselines::ResultClass::kProjected) return {};
    baselines::Cell& cell = cells_[i];
    judge_losses(cell, outcome_.run.cells);
    MB_TRY(judge_recorded_gradients(writer_, cell, outcome_.run.cells));
    if (const auto layout = trainer::resolve(suite_.cells[i].config))
      judge_learning(cell, entropy_of(suite_.cells[i].config, layout->model.vocab_size));
    return {};
  }

  Result<RunOutcome> close() {
    std::sort(outcome_.run.cells.begin(), outcome_.run.cells.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    MB_TRY(judge_claims_of(writer_, suite_, options_, outcome_));
    outcome_.run.ended_unix_ns = outcome_.stopped ? 0 : wall_ns();
    outcome_.run.exit_status = exit_status(outcome_, options_.require_measured);
    outcome_.notes = idle_notes(suite_, outcome_.run.cells);
    MB_TRY(writer_.write_run(outcome_.run));
    keep_in_store(options_, outcome_.run, writer_.folder(), nullptr);
    return std::move(outcome_);
  }

  baselines::BundleWriter writer_;
  RunOutcome outcome_;
  const Suite& suite_;
  const RunOptions& options_;
  std::vector<baselines::Cell> cells_;
  std::vector<CellRunner::Left> left_;
  Progress progress_;
  CellRunner runner_;
  TwinRunner twins_;
};

Result<RunOutcome> run_cells(baselines::BundleWriter writer, RunOutcome outcome, const Suite& suite,
                             const RunOptions& options) {
  return CellLoop(std::move(writer), std::move(outcome), suite, options).run();
}

}  // namespace

std::filesystem::path store_file(const std::filesystem::path& runs_dir) {
  return runs_dir / "mbbench.sqlite";
}

namespace {

// The processes of an MPI launcher are the ranks of one launch.
Status check_launcher(const RunOptions& options) {
  MB_ASSIGN(const auto place, trainer::process_place());
  if (!place || (options.command == "run" && options.launches == 1)) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("a launcher started {} processes, which are the ranks of one launch, and {} starts launches of "
                  "its own",
                  place->size, options.launches > 1 ? "--launches" : "`" + options.command + "`"),
      "under a launcher use `mbbench run` with one launch; leave it out where ranks may be threads");
}

}  // namespace

Result<RunOutcome> start_run(const Suite& suite, const RunOptions& options) {
  MB_TRY(check_launcher(options));
  MB_TRY(check_inputs(suite));
  RunOutcome outcome;
  baselines::Run& run = outcome.run;
  run.created_unix_ns = wall_ns();
  run.command = options.command;
  run.suite = suite.name;
  run.spec = suite.text;
  run.tag = options.tag;
  const auto is_known = [](std::string_view name) { return find_setting(name).has_value(); };
  run.argv = profiler::capture_arguments({options.argv.begin() + 1, options.argv.end()}, is_known);
  run.environment = profiler::capture_environment(env_all(), is_known);
  MB_ASSIGN(auto roled, profiler::apply_roles(profiler::take_fingerprint(options.facts), options.roles));
  if (!options.program.empty()) {  // its build, not ours
    MB_ASSIGN(auto theirs, with_build_of(options.program, std::move(roled.fingerprint)));
    MB_ASSIGN(roled, profiler::apply_roles(std::move(theirs), options.roles));
  }
  run.fingerprint = std::move(roled.fingerprint);
  run.epoch = roled.epoch;
  for (const Cell& cell : suite.cells) run.planned_cells.push_back(cell.name);
  MB_TRY(make_dirs(options.runs_dir));
  MB_ASSIGN(auto writer, baselines::BundleWriter::create_new(options.runs_dir / "runs", run));
  outcome.bundle = writer.folder();
  return run_cells(std::move(writer), std::move(outcome), suite, options);
}

Result<RunOutcome> resume_run(const std::filesystem::path& bundle, const Suite& suite, const RunOptions& options) {
  MB_TRY(check_launcher(options));
  MB_TRY(check_inputs(suite));
  MB_ASSIGN(auto writer, baselines::BundleWriter::reopen(bundle));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  RunOutcome outcome;
  outcome.bundle = bundle;
  outcome.run = reader.run();
  MB_ASSIGN(const auto entries, reader.cells());
  for (const auto& entry : entries) {
    if (entry.state != baselines::CellState::kFinished) continue;
    MB_ASSIGN(auto cell, reader.read_cell(entry.name));
    outcome.run.cells.push_back(std::move(cell));
  }
  MB_TRY(check_manifest(outcome.run, suite));
  MB_TRY(check_same_knobs(outcome.run, suite));
  return run_cells(std::move(writer), std::move(outcome), suite, options);
}

std::string hardware_of(const Suite& suite, const RunOptions& options) {
  if (!options.hardware.empty()) return options.hardware;
  return suite.hardware.empty() ? kUsualHardware : suite.hardware;
}

std::vector<baselines::Cell> describe_cells(const Suite& suite, const RunOptions& options) {
  std::vector<baselines::Cell> planned;
  const std::string hardware = hardware_of(suite, options);
  DataHashes data;
  // Of a single configuration a failed check ends no others.
  PlanProbe probe(suite.cells.size() > 1 ? suite.cells.size() : 0, [&](size_t i) { plan_once(suite.cells[i]); });
  for (size_t i = 0; i < suite.cells.size(); ++i) {
    const int index = static_cast<int>(i);
    const std::string failed = probe.failure(i);
    if (failed.empty()) {
      planned.push_back(describe_cell(suite.cells[i], index, "", options, hardware, data));
      continue;
    }
    planned.push_back(named_cell(suite.cells[i], index, ""));
    planned.back().status = CellStatus::kBroken;
    planned.back().reason = failed;
  }
  return planned;
}

}  // namespace mbb::suites
