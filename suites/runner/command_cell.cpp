// Expands, runs, reads, settles.
#include "suites/runner/command_cell.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/bundle.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/capture/telemetry.h"
#include "profiler/host/gpus.h"
#include "suites/foreign/log_records.h"
#include "suites/foreign/log_text.h"
#include "suites/runner/child.h"
#include "suites/runner/log_tail.h"
#include "suites/runner/possible_rate.h"
#include "trainer/models/flops.h"
#include "trainer/models/hardware.h"
#include "trainer/run/knobs.h"
#include "trainer/run/launch_environment.h"
#include "trainer/run/layout.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;
using baselines::CellStatus;

bool is_set(const Cell& planned, const char* key) {
  const auto found = planned.sources.find(key);
  return found != planned.sources.end() && found->second.layer != Layer::kDefault;
}

// Batch and sequence that a knob was set to or a log says; 0: neither, since a default of ours is no word on it.
int64_t known_batch(const Cell& planned, const TrainingLog& log) {
  if (log.global_batch_size > 0) return log.global_batch_size;
  return is_set(planned, "train.global_batch_size") ? planned.config.train.global_batch_size : 0;
}
int64_t known_sequence(const Cell& planned, const TrainingLog& log) {
  if (log.sequence_length > 0) return log.sequence_length;
  return is_set(planned, "train.seq_length") ? planned.config.train.seq_length : 0;
}

// A knob, a log, or the command itself, which is told our number.
bool gpus_are_known(const Cell& planned, const TrainingLog& log) {
  if (log.gpus > 0 || (planned.command && planned.command->run.find("{gpus") != std::string::npos)) return true;
  for (const char* key : {"parallel.gpus", "parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                          "parallel.pipeline_model_parallel_size", "parallel.expert_model_parallel_size"})
    if (is_set(planned, key)) return true;
  return false;
}

// Rates that are divided by a number of GPUs which is ours alone.
void drop_rates_per_gpu(baselines::Cell& cell) {
  std::erase_if(cell.metrics, [](const baselines::Metric& one) {
    return one.name.find("per_gpu") != std::string::npos || one.name.starts_with("mfu_");
  });
}

void set_known_work(const Cell& planned, const TrainingLog& log, baselines::Cell& cell) {
  trainer::Config config = planned.config;
  const int64_t batch = known_batch(planned, log), sequence = known_sequence(planned, log);
  if (batch > 0) config.train.global_batch_size = batch;
  if (sequence > 0) config.train.seq_length = sequence;
  const LogContext context = log_context(planned, log, cell.gpus);
  set_work(config, context.tokens_per_step, is_set(planned, "model.name") && sequence > 0, cell);
  if (context.gpus > 0) cell.gpus = cell.ranks = static_cast<int>(context.gpus);
}

// What {name} stands for in the command of one launch.
Result<std::string> template_value(std::string_view name, const Cell& planned, const baselines::Cell& cell, int index,
                                   const fs::path& folder) {
  const int64_t per_node = std::min<int64_t>(planned.command->gpus_per_node, cell.gpus);
  if (name == "gpus") return std::to_string(cell.gpus);
  if (name == "gpus_per_node") return std::to_string(per_node);
  if (name == "nodes") return std::to_string((cell.gpus + per_node - 1) / per_node);
  if (name == "run_dir") return fs::absolute(folder).string();
  if (name == "cell") return cell.name;
  if (name == "launch") return std::to_string(index);
  if (name.starts_with("knob.")) name.remove_prefix(5);
  MB_ASSIGN(const Knob* knob, trainer::knobs().find(name));
  return trainer::knobs().text(planned.config, knob->key);
}

// The last lines of what a command said, for a reason.
std::string tail_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  in.seekg(0, std::ios::end);
  const auto size = static_cast<int64_t>(in.tellg());
  if (size <= 0) return {};
  constexpr int64_t kTail = int64_t{1} << 16U;  // a launcher's report may be long, and follows the error
  in.seekg(std::max<int64_t>(0, size - kTail));
  std::string text(static_cast<size_t>(std::min(size, kTail)), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  const size_t cut = size > kTail ? text.find('\n') : std::string::npos;
  return last_lines(cut == std::string::npos ? std::string_view(text) : std::string_view(text).substr(cut));
}

std::string why_it_failed(const ProcessEnd& end, const CommandSpec& spec, const fs::path& log) {
  const std::string said = tail_of(log);
  const std::string behind = said.empty() ? "; it printed nothing" : ": " + said;
  if (end.over_time) return fmt::format("stopped after time_limit_s = {} s{}", spec.time_limit_s, behind);
  if (end.timed_out) return fmt::format("silent for silence_limit_s = {} s; killed{}", spec.silence_limit_s, behind);
  if (end.signal != 0) return fmt::format("the command was ended by signal {}{}", end.signal, behind);
  if (end.exit_status == 127)
    return fmt::format("the command or a program in it was not found (exit status 127){}", behind);
  if (end.exit_status != 0) return fmt::format("the command ended with exit status {}{}", end.exit_status, behind);
  return {};
}

// Follows a running command: keeps what it prints, and reads it as it comes.
class Follower {
 public:
  Follower(std::unique_ptr<LogReader> reader, const fs::path& log, const LogContext& context, baselines::LiveSteps live,
           const std::function<void(const LoggedStep& step)>& on_step)
      : reader_(std::move(reader)),
        log_(log, std::ios::binary),
        context_(context),
        live_(std::move(live)),
        on_step_(on_step) {}

  void line(std::string_view text) {
    log_ << text << '\n' << std::flush;
    if (!reader_->line(plain_line(text))) return;
    const TrainingLog& read = reader_->so_far();
    LoggedStep step;
    step.index = ++steps_;
    if (!read.steps.empty()) {
      step.loss = read.steps.back().loss;
      // Only watched: the launch's record has the steps that count.
      if (const auto timed = step_of(read, read.steps.size() - 1, context_of(read, context_))) (void)live_.add(*timed);
    }
    if (on_step_) on_step_(step);
  }
  bool good() const { return log_.good(); }
  TrainingLog finish() { return reader_->finish(); }

 private:
  std::unique_ptr<LogReader> reader_;
  std::ofstream log_;
  LogContext context_;
  baselines::LiveSteps live_;
  const std::function<void(const LoggedStep& step)>& on_step_;
  int64_t steps_ = 0;
};

// True once the file has grown: a command that writes a file and prints nothing is not silent.
std::function<bool()> growth_of(const fs::path& file) {
  return [file, last = uintmax_t{0}]() mutable {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (error || size == last) return false;
    last = size;
    return true;
  };
}

}  // namespace

LogContext log_context(const Cell& planned, const TrainingLog& log, int64_t gpus) {
  const int64_t batch = known_batch(planned, log), sequence = known_sequence(planned, log);
  return context_of(log, {batch * sequence, gpus, sequence});
}

int64_t gpus_of(const trainer::Config& config) {
  if (const auto layout = trainer::resolve(config)) return layout->mesh.world_size();
  const trainer::ParallelConfig& p = config.parallel;
  const int64_t replica = p.tensor_model_parallel_size * p.context_parallel_size * p.pipeline_model_parallel_size;
  return p.gpus > 0 ? p.gpus : std::max<int64_t>(1, replica);
}

void set_work(const trainer::Config& config, int64_t tokens_per_step, bool with_flops, baselines::Cell& cell) {
  cell.work = {};
  cell.work.tokens_per_step = tokens_per_step;
  const auto layout = trainer::resolve(config);
  if (!with_flops || !layout) return;
  const trainer::ModelShape shape = layout->padded_model();
  using trainer::FlopsConvention;
  const auto flops = [&](FlopsConvention convention) {
    return trainer::flops_per_token(shape, layout->sequence, convention, layout->encoder_sequence);
  };
  cell.work.flops_per_token_causal = flops(FlopsConvention::kCausal);
  cell.work.flops_per_token_full = flops(FlopsConvention::kFull);
  cell.work.formula = trainer::kFlopsFormulaId;
  cell.work.formula_version = trainer::kFlopsFormulaVersion;
}

void describe_command(const Cell& planned, baselines::Cell& cell) {
  const CommandSpec& spec = *planned.command;
  // Defaults of the built-in trainer say nothing of another one.
  std::erase_if(cell.knobs, [](const baselines::KnobValue& knob) { return knob.source == name(Layer::kDefault); });
  if (!is_set(planned, "model.name")) cell.model = "not said";
  cell.knobs.push_back({kCommandKnob, spec.run, name(Layer::kSuite), spec.file, spec.line, true});
  // One command line for all cells, told apart by their names: so are their series.
  if ((spec.run + spec.log_file).find("{cell}") != std::string::npos)
    cell.knobs.push_back({"command.cell", planned.name, name(Layer::kSuite), spec.file, spec.line, true});
  cell.knobs.push_back({"command.log", spec.log, name(Layer::kSuite), spec.file, 0, false});
  cell.gpus = cell.ranks = static_cast<int>(gpus_of(planned.config));
  set_known_work(planned, {}, cell);
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.device = kUnknownDevice;
  const profiler::GpuInventory found = profiler::list_gpus();
  if (!spec.device.empty())
    cell.device = trainer::device_name_of(spec.device);
  else if (static_cast<int>(found.gpus.size()) >= cell.gpus)
    cell.device = found.gpus.front().model;
  cell.devices = gpus_are_known(planned, {}) ? cell.gpus : 0;
  cell.identity_hash = baselines::identity_hash(cell);
}

Result<CommandLaunch> launch_command(const Cell& planned, const baselines::Cell& cell, int index,
                                     const fs::path& folder, const std::atomic<bool>* stop,
                                     const std::function<void(const LoggedStep& step)>& on_step) {
  const CommandSpec& spec = *planned.command;
  const NameValue value = [&](std::string_view name) { return template_value(name, planned, cell, index, folder); };
  MB_ASSIGN(const std::string command, expand_template(spec.run, value));
  MB_ASSIGN(const std::string log_file, expand_template(spec.log_file, value, false));
  MB_TRY(write_file(folder / kCommandLineFile, command + "\n"));
  MB_ASSIGN(auto reader, make_log_reader(spec.log));
  MB_ASSIGN(auto live, baselines::LiveSteps::create(folder));
  const LogContext known = log_context(planned, {}, cell.gpus);
  Follower follower(std::move(reader), folder / kCommandLogFile, known, std::move(live), on_step);
  ProcessOptions process;
  // Trainers log to either stream; one pipe keeps their order.
  process.arguments = {"/bin/sh", "-c", "exec 2>&1\n" + command};
  process.environment = trainer::launch_environment(planned.config);
  process.environment.emplace_back("MBBENCH_RUN_DIR", fs::absolute(folder).string());
  process.stderr_file = folder / kCommandLogFile;
  process.silence_limit_ms = spec.silence_limit_s * 1000;
  process.time_limit_ms = spec.time_limit_s * 1000;
  process.stop = stop;
  process.on_line = [&](std::string_view line) { follower.line(line); };
  if (!log_file.empty()) process.on_tick = growth_of(log_file);
  CommandLaunch done;
  // Of this machine; a command that runs elsewhere leaves its devices to its own telemetry.
  profiler::TelemetryOptions watched;
  if (profiler::list_gpus().gpus.size() >= static_cast<size_t>(cell.gpus))
    for (int gpu = 0; gpu < cell.gpus; ++gpu) watched.gpus.push_back(gpu);
  profiler::Telemetry telemetry(watched);
  const int64_t started = wall_ns();
  MB_ASSIGN(done.end, run_process(process));
  const int64_t ended = wall_ns();
  MB_TRY(write_file(folder / kTelemetryFile, profiler::telemetry_csv(telemetry.stop())));
  if (!follower.good())
    return fail(ErrorCode::kIo, fmt::format("writing {}: the disk is full?", (folder / kCommandLogFile).string()));
  done.log = follower.finish();
  std::string trouble = why_it_failed(done.end, spec, folder / kCommandLogFile);
  if (!log_file.empty()) {
    auto log = read_log(log_file, spec.log);
    if (log)
      done.log = std::move(*log);
    else if (trouble.empty())
      trouble = log.error().what;
  } else if (done.log.steps.empty() && trouble.empty()) {
    const Error none = no_step_error("what the command printed", done.log, spec.log);
    trouble = none.what + "; " + none.hint;
  }
  done.launch = launch_of(done.log, context_of(done.log, known));
  done.launch.index = index;
  done.launch.seed = planned.config.train.seed;
  done.launch.started_unix_ns = started;
  done.launch.ended_unix_ns = ended;
  done.launch.exit_status = done.end.exit_status;
  done.launch.signal = done.end.signal;
  done.launch.reason = std::move(trouble);
  return done;
}

namespace {

// The batch that a log contradicts its knob with; 0 where it does not: a batch that grows need not be there yet.
int64_t other_batch(const Cell& planned, const TrainingLog& log) {
  const int64_t set = planned.config.train.global_batch_size;
  const bool grows = std::any_of(log.steps.begin(), log.steps.end(), [&](const LoggedStep& step) {
    return step.sequences > 0 && step.sequences < log.global_batch_size;
  });
  const bool met =
      std::any_of(log.steps.begin(), log.steps.end(), [&](const LoggedStep& step) { return step.sequences == set; });
  return grows && (met || set > log.global_batch_size) ? 0 : log.global_batch_size;
}

// A number that both a knob and the log give must be one.
bool contradicts(const Cell& planned, const char* key, int64_t logged, baselines::Cell& cell) {
  if (logged == 0 || !is_set(planned, key)) return false;
  const auto ours = parse_int(trainer::knobs().text(planned.config, key));
  if (!ours || *ours == logged) return false;
  cell.status = CellStatus::kBroken;
  cell.reason = fmt::format("{} is {} as set and {} in the log", key, *ours, logged);
  return true;
}

}  // namespace

void settle_command(const Cell& planned, baselines::Cell& cell, const std::vector<TrainingLog>& logs) {
  const TrainingLog& log = logs.front();
  if (contradicts(planned, "train.global_batch_size", other_batch(planned, log), cell) ||
      contradicts(planned, "train.seq_length", log.sequence_length, cell) ||
      contradicts(planned, "parallel.gpus", log.gpus, cell))
    return;
  set_known_work(planned, log, cell);
  settle_batch(cell);
  if (cell.device == kUnknownDevice && !log.device.empty()) cell.device = log.device;
  const bool gpus_known = gpus_are_known(planned, log);
  cell.devices = gpus_known ? cell.gpus : 0;
  cell.identity_hash = baselines::identity_hash(cell);
  const trainer::Recipe recipe = planned.config.precision.recipe;
  judge_numerics(cell, logs);
  if (cell.status != CellStatus::kOk) return;
  if (const auto filled = analysis::fill_metrics(cell, {}, trainer::is_quantized(recipe)); !filled) {
    cell.status = CellStatus::kUnstable;
    cell.reason = filled.error().what;
    return;
  }
  if (!gpus_known) drop_rates_per_gpu(cell);
  add_logged_metrics(cell, logs);
  judge_logged_rate(cell);
  judge_rate(is_set(planned, "precision.recipe") ? std::optional(recipe) : std::nullopt, cell);
}

}  // namespace mbb::suites
