// The child's side of a launch: configuration in, trained steps, op rows, memory and trace out.
#include "suites/runner/child.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/op_rows.h"
#include "baselines/store/bundle.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/capture/telemetry.h"
#include "profiler/host/boost_slider.h"
#include "profiler/host/gpus.h"
#include "profiler/memory/snapshot_writer.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/export.h"
#include "suites/runner/canary.h"
#include "suites/runner/gradients.h"
#include "suites/runner/idle_notes.h"
#include "suites/runner/local_ranks.h"
#include "suites/runner/memory_history.h"
#include "suites/runner/op_records.h"
#include "suites/runner/planning.h"
#include "suites/runner/reason.h"
#include "suites/runner/routing_input.h"
#include "suites/runner/sequence_work.h"
#include "suites/runner/stopping_rule.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/run/knobs.h"
#include "trainer/run/layout.h"
#include "trainer/run/profile_window.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

namespace mbb::suites {
namespace {

std::atomic<bool> stop_requested = false;
void request_stop(int) {
  Planning::end_here(kExitAsked);
  stop_requested = true;
}

Result<trainer::Config> read_config(const std::filesystem::path& folder) {
  const std::string path = folder / kLaunchConfigFile;
  MB_ASSIGN(const std::string lines, read_file(path));
  trainer::Config config;
  KnobSources sources;
  MB_TRY(trainer::knobs().from_lines(config, sources, lines, Source{Layer::kCommandLine, path}));
  return config;
}

// All traced steps on one clock, one after another.
profiler::Trace join(std::vector<profiler::Trace> traces) {
  profiler::Trace all = std::move(traces.front());
  int64_t offset = all.steps.empty() ? 0 : all.steps.front().end_ns;
  for (size_t i = 1; i < traces.size(); ++i) {
    profiler::StringTable strings;
    for (const std::string& text : all.strings) strings.intern(text);
    std::vector<profiler::StringId> renumbered;
    for (const std::string& text : traces[i].strings) renumbered.push_back(strings.intern(text));
    all.strings = strings.strings();
    for (profiler::Span span : traces[i].spans) {
      span.start_ns += offset;
      span.end_ns += offset;
      span.name = renumbered[span.name];
      span.op = renumbered[span.op];
      if (span.collective != 0) span.collective += i << 40;
      all.spans.push_back(span);
    }
    int64_t longest = 0;
    for (profiler::StepWindow window : traces[i].steps) {
      longest = std::max(longest, window.end_ns);
      window.start_ns += offset;
      window.end_ns += offset;
      all.steps.push_back(window);
    }
    offset += longest;
  }
  profiler::sort_spans(all);
  return all;
}

// The spans, steps and tracks of the ranks that are profiled.
void keep_ranks(profiler::Trace& trace, const trainer::ProfileWindow& window) {
  if (window.ranks.empty()) return;
  const auto kept = [&](int32_t rank) { return window.has_rank(rank); };
  std::erase_if(trace.spans, [&](const profiler::Span& span) { return !kept(trace.rank_of(span)); });
  std::erase_if(trace.steps, [&](const profiler::StepWindow& step) { return !kept(step.rank); });
  std::vector<uint32_t> renumbered(trace.tracks.size());
  std::vector<profiler::Track> tracks;
  for (size_t i = 0; i < trace.tracks.size(); ++i) {
    renumbered[i] = static_cast<uint32_t>(tracks.size());
    if (kept(trace.tracks[i].rank)) tracks.push_back(trace.tracks[i]);
  }
  for (profiler::Span& span : trace.spans) span.track = renumbered[span.track];
  trace.tracks = std::move(tracks);
}

// What capture could not do or lost is a named count of the launch.
void count_capture(baselines::Launch& launch, const trainer::TrainResult& result) {
  for (const std::string& note : result.notes) launch.counts.push_back({"device: " + note, 1});
  if (!result.capture_note.empty()) launch.counts.push_back({"capture: " + result.capture_note, 1});
  if (!result.captured) return;
  const profiler::Attribution& a = result.captured->attribution;
  launch.counts.push_back({"capture_dropped_records", static_cast<int64_t>(result.captured->trace.dropped_spans)});
  launch.counts.push_back({"captured_device_events", a.device_events});
  launch.counts.push_back({"captured_device_ns", a.device_ns});
  launch.counts.push_back({"unattributed_device_events", a.unattributed_events});
  launch.counts.push_back({"unattributed_device_ns", a.unattributed_ns});
  const profiler::Alignment& clocks = result.alignment;
  for (const auto& [rank, shift] : clocks.shift_ns)
    launch.counts.push_back({fmt::format("capture: clock of rank {}, shifted by ns", rank), shift});
  for (const profiler::EndSpread& spread : clocks.spreads) {
    const std::string whose = fmt::format("{} {}", name(spread.kind), fmt::join(spread.members, ","));
    launch.counts.push_back({fmt::format("capture: ends of {} apart, median ns", whose), spread.median_ns});
    launch.counts.push_back({fmt::format("capture: ends of {} apart, largest ns", whose), spread.largest_ns});
  }
  for (const int32_t rank : clocks.unaligned)
    launch.counts.push_back({fmt::format("capture: rank {} shares no collective and keeps its clock", rank), 1});
}

// The window's trace: captured on a GPU, else replayed; nothing where no step was traced.
std::optional<profiler::Trace> traced(trainer::TrainResult& result) {
  if (result.captured && result.captured->attribution.device_events == 0) {
    result.capture_note = "CUPTI attached and gave no device record";
    return std::nullopt;
  }
  if (result.captured) return result.captured->trace;
  if (result.traces.empty()) return std::nullopt;
  return join(std::move(result.traces));
}

baselines::Step step_of(const trainer::StepReport& r, const trainer::TrainOptions& options) {
  baselines::Step step;
  step.index = r.index;
  step.wall_ns = r.wall_ns;
  step.cpu_ns = r.cpu_ns;
  step.reference_ns = r.reference_ns;
  step.modelled_ns = r.modelled_ns;
  step.loss = r.loss;
  step.balance_loss = r.balance_loss.value_or(baselines::kNotMeasured);
  step.z_loss = r.z_loss.value_or(baselines::kNotMeasured);
  step.mtp_loss = r.mtp_loss.value_or(baselines::kNotMeasured);
  step.grad_norm = r.grad_norm;
  step.learning_rate = r.learning_rate;
  step.tokens = r.tokens;
  step.sequence_squares = r.squares;
  if (r.index >= options.trace_first && r.index < options.trace_end) step.flags |= baselines::kStepProfiled;
  return step;
}

bool records_memory(const trainer::Config& config) {
  return config.profiling.record_memory_history || !config.profiling.memory_snapshot_path.empty();
}

// Before hours of training, not after them.
Status check_snapshot_path(const trainer::Config& config, const std::filesystem::path& folder) {
  const std::string& knob = config.profiling.memory_snapshot_path;
  if (knob.empty()) return {};
  const std::filesystem::path parent = std::filesystem::path(snapshot_file(knob, folder, "", false)).parent_path();
  if (is_folder(parent) && access(parent.c_str(), W_OK) == 0) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("profiling.memory_snapshot_path = {}: {} is no folder that can be written", knob, parent.string()),
      "name a file in a folder that is there; a relative path lies in the launch's folder");
}

// Every lifetime as it was, where the history is recorded; else the plan in the cell says all there is to say.
Status add_memory(baselines::Launch& launch, const trainer::Layout& layout, const trainer::StepPrograms& programs,
                  const profiler::Trace* trace, const trainer::TrainResult& result,
                  const std::filesystem::path& folder) {
  if (!records_memory(layout.config)) return {};
  launch.memory = memory_history(layout, programs, trace, result.outside);
  const std::string& knob = layout.config.profiling.memory_snapshot_path;
  if (knob.empty()) return {};
  for (const baselines::MemoryMap& map : launch.memory) {
    MB_ASSIGN(const profiler::MemorySnapshot snapshot, memory_snapshot(map));
    MB_TRY(profiler::write_snapshot(snapshot_file(knob, folder, map.rank_class, launch.memory.size() > 1), snapshot));
  }
  return {};
}

void add_bindings(baselines::Launch& launch, const trainer::TrainResult& result) {
  for (size_t rank = 0; rank < result.bindings.size(); ++rank)
    launch.counts.push_back({fmt::format("cpus of rank {}: {}", rank, result.bindings[rank]), 1});
}

// Fixed work on this process's GPU before and after the training; nothing on a CPU. Evidence only: where it cannot run,
// the training says what is wrong with the device.
class GpuCanary {
 public:
  GpuCanary(const trainer::Config& config, const std::optional<trainer::ProcessPlace>& place)
      : device_(place ? place->local_rank : 0) {
    if (config.host.device != trainer::Device::kCuda) return;
    if (const auto timed = run_gpu_canary(device_)) before_ = *timed;
  }
  void record(baselines::Launch& launch) const {
    if (!before_) return;
    if (const auto after = run_gpu_canary(device_))
      record_canary(launch, *before_, *after, device_);
    else
      launch.counts.push_back({"canary_gpu: " + after.error().what, 1});
  }
  // What cannot be left breaks no launch that has trained: the first rank says that it is missing.
  void leave(const std::filesystem::path& folder) const {
    if (!before_) return;
    if (const auto after = run_gpu_canary(device_)) (void)leave_canary(folder, *before_, *after, device_);
  }

 private:
  int device_;
  std::optional<Canary> before_;
};

// Telemetry of a launch: telemetry.csv beside its traces, written as the run goes on; canaries before and after.
class Watch {
 public:
  Watch(const trainer::Config& config, const trainer::Layout& layout, const std::optional<trainer::ProcessPlace>& place,
        const std::filesystem::path& folder)
      : canary_(config, place),
        gpus_(options_of(config, layout).gpus),
        path_(folder / kTelemetryFile),
        file_(std::fopen(path_.c_str(), "w")),
        telemetry_(options_of(config, layout)) {}

  // What was sampled since the last time.
  void write() { add(telemetry_.drain()); }

  void step_ended(int64_t index) {
    if (!gpus_.empty()) ends_ += fmt::format("{},{}\n", index, monotonic_ns());
  }

  Status finish(baselines::Launch& launch) {
    if (!gpus_.empty()) MB_TRY(write_file(path_.parent_path() / kStepEndsFile, ends_));
    add(telemetry_.stop());
    canary_.record(launch);
    if (file_ == nullptr || std::fflush(file_.get()) != 0 || std::ferror(file_.get()) != 0)
      return fail(ErrorCode::kUnavailable, fmt::format("writing {}", path_.string()), "is there room on the disk?");
    if (!telemetry_.note().empty()) launch.counts.push_back({"telemetry: " + telemetry_.note(), 1});
    launch.counts.push_back({"telemetry_samples", samples_});
    if (throttled_ > 0) launch.counts.push_back({"telemetry_throttled_samples", throttled_});
    if (failed_ > 0) launch.counts.push_back({"telemetry_failed_samples", failed_});
    for (const int gpu : gpus_)  // as found, or as host.vboost set it
      if (const auto slider = profiler::read_boost_slider(gpu))
        launch.counts.push_back({fmt::format("vboost of GPU {}", gpu), slider->value});
    return {};
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  static profiler::TelemetryOptions options_of(const trainer::Config& config, const trainer::Layout& layout) {
    profiler::TelemetryOptions options;
    if (config.host.device == trainer::Device::kCuda)
      for (int gpu = 0; gpu < (config.host.share_device ? 1 : layout.mesh.world_size()); ++gpu)
        options.gpus.push_back(profiler::nvml_index_of(gpu));
    if (const auto named = profiler::parse_cpus(config.host.cpu_binding)) options.launch_cpus = *named;
    return options;
  }

  void add(const std::vector<profiler::TelemetrySample>& samples) {
    constexpr uint64_t kIdle = 1;
    for (const profiler::TelemetrySample& sample : samples) {
      if (sample.gpu >= 0 && (sample.device.throttle_reasons & ~kIdle) != 0) ++throttled_;
      if (sample.failed) ++failed_;
    }
    if (file_ != nullptr && (!samples.empty() || samples_ == 0)) {
      const std::string rows = profiler::telemetry_csv(samples, std::ftell(file_.get()) == 0);
      std::fwrite(rows.data(), 1, rows.size(), file_.get());
      std::fflush(file_.get());
    }
    samples_ += static_cast<int64_t>(samples.size());
  }

  GpuCanary canary_;
  std::vector<int> gpus_;
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;  // null where it cannot be opened: finish() says so
  int64_t samples_ = 0, throttled_ = 0, failed_ = 0;
  profiler::Telemetry telemetry_;
  std::string ends_ = "index,end_ns\n";
};

// Log lines and telemetry leave this process when all ranks are at their host work.
void write_at_host_work(trainer::TrainOptions& options, Watch& watch) {
  options.on_host_work = [&watch](int rank, int64_t) {
    if (rank != 0) return;
    std::fflush(stdout);
    watch.write();
  };
}

// A thread that runs for ever can only be ended with its process; the record first.
void end_stuck(const std::filesystem::path& folder, bool writes, baselines::Launch& launch, const Error& error) {
  launch.ended_unix_ns = wall_ns();
  launch.exit_status = kExitFailed;
  launch.reason = error.what;
  say(fmt::format("{}\n", format(error)));
  if (writes)
    if (const Status written = baselines::write_launch(folder, launch); !written)
      say(fmt::format("{}\n", format(written.error())));
  _exit(kExitFailed);
}

// What guards every run, and the launcher's part in it.
void set_ending(trainer::TrainOptions& options, const trainer::Config& config, const std::filesystem::path& folder,
                const std::optional<trainer::ProcessPlace>& place, baselines::Launch& launch) {
  const bool writes = !place || place->rank == 0;
  options.stop = &stop_requested;
  options.no_progress_ms = config.host.no_progress_limit_s * 1'000;
  options.places_file = folder / kPlacesFile;
  options.on_stuck = [folder, writes, &launch](const Error& error) { end_stuck(folder, writes, launch, error); };
  options.processes = place.has_value();
  if (writes) return;
  options.on_joined = [] {
    fmt::print("{}\n", kJoinedLine);
    std::fflush(stdout);
  };
}

// With a stopping rule nobody knows where the run ends: steps are profiled once it is warm, unless others are named.
Result<trainer::ProfileWindow> window_of(const trainer::Config& config, int ranks, bool ends_early) {
  MB_ASSIGN(trainer::ProfileWindow window, trainer::profile_window(config, ranks));
  constexpr int64_t kWarm = 20;
  if (!ends_early || config.profiling.profile_step_start >= 0 || config.profiling.profile_step_end >= 0) return window;
  const int64_t length = window.end - window.first;
  window.first = std::min(window.first, kWarm);
  window.end = window.first + length;
  return window;
}

// The rule the parent left, or one that never ends a run.
Result<StoppingRule> rule_of(const std::filesystem::path& folder, const trainer::ProfileWindow& window) {
  long long steps = 0;
  double interval = 0;
  if (file_exists(folder / kStoppingRuleFile)) {
    MB_ASSIGN(const std::string text, read_file(folder / kStoppingRuleFile));
    if (std::sscanf(text.c_str(), "%lld %lf", &steps, &interval) != 2)
      return fail(ErrorCode::kBadFile,
                  fmt::format("{}: two numbers are expected", (folder / kStoppingRuleFile).string()));
  }
  return StoppingRule(steps, interval, window.first, window.end);
}

void count_idle(baselines::Launch& launch, const std::vector<trainer::IdleKnob>& idle) {
  for (const trainer::IdleKnob& knob : idle) launch.counts.push_back({kIdleCount + describe(knob), 1});
}

void count_cuts(baselines::Launch& launch, const trainer::SequenceDataset& sequences) {
  launch.counts.push_back({"sequences truncated", sequences.cut().truncated});
  launch.counts.push_back({"sequences dropped", sequences.cut().dropped});
  launch.counts.push_back({"sequences without a token to predict", sequences.cut().empty});
}

// The choices a launch replays: the reference's, which the parent left, or those of the file that the knob names.
Result<std::optional<trainer::RoutingTable>> choices_of(const trainer::Layout& layout,
                                                        const std::filesystem::path& folder) {
  if (!layout.replays_routing) return std::optional<trainer::RoutingTable>();
  const std::string& from = layout.config.parallel.moe_router_replay;
  if (from == "reference" && !file_exists(folder / kReferenceRoutingFile))
    return std::optional<trainer::RoutingTable>();
  auto read =
      trainer::RoutingTable::read(from == "reference" ? folder / kReferenceRoutingFile : std::filesystem::path(from));
  if (!read) return tl::unexpected<Error>(std::move(read.error()).during("parallel.moe_router_replay = " + from));
  return std::optional(std::move(*read));
}

void end_by(StoppingRule& rule, trainer::TrainOptions& options, const trainer::Config& config,
            baselines::Launch& launch) {
  options.enough = [&](const trainer::StepReport& r) {
    const bool enough = rule.enough_after(r.index, static_cast<double>(r.wall_ns) * 1e-9);
    if (enough && r.index + 1 < config.train.train_iters)
      launch.counts.push_back({"ended early, its times being known well enough, after steps", r.index + 1});
    return enough;
  };
}

void record_into(GradientRecorder& recorder, trainer::TrainOptions& options) {
  options.on_gradient = [&](const trainer::MeshCoordinates& rank, int64_t step, const trainer::Tensor& weight,
                            int64_t first,
                            std::span<const float> part) { recorder.add(rank, step, weight, first, part); };
}

Result<trainer::StepPrograms> plan(const trainer::Layout& layout) {
  const Planning planning;
  return trainer::build_programs(layout);
}

// A rank that keeps no record but of its GPU.
Status train_beside(const std::filesystem::path& folder, const std::optional<trainer::ProcessPlace>& place,
                    const trainer::Layout& layout, const trainer::StepPrograms& programs,
                    const trainer::SampleSource& sample, const trainer::TrainOptions& options) {
  const GpuCanary canary(layout.config, place);
  MB_TRY(trainer::train(layout, programs, sample, options).map([](const auto&) {}));
  canary.leave(folder);
  return {};
}

Status train_into(const std::filesystem::path& folder, const std::optional<trainer::ProcessPlace>& place,
                  LocalRanks* ranks, baselines::Launch& launch) {
  MB_ASSIGN(const trainer::Config config, read_config(folder));
  launch.seed = config.train.seed;
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
  MB_ASSIGN(const trainer::StepPrograms programs, plan(layout));
  count_idle(launch, layout.idle);
  count_idle(launch, programs.idle);
  trainer::TrainOptions options;
  std::optional<trainer::Dataset> data;
  std::optional<trainer::SequenceDataset> sequences;
  if (layout.has_sequences()) {
    MB_ASSIGN(sequences, trainer::open_sequences(layout));
    count_cuts(launch, *sequences);
    options.sequences = &*sequences;
  } else {
    MB_ASSIGN(data, trainer::open_dataset(layout));
  }
  const bool ends_early = file_exists(folder / kStoppingRuleFile);
  MB_ASSIGN(const trainer::ProfileWindow window, window_of(config, layout.mesh.world_size(), ends_early));
  MB_ASSIGN(StoppingRule rule, rule_of(folder, window));
  if (rule.is_active()) end_by(rule, options, config, launch);
  options.trace_first = window.first;
  options.trace_end = window.end;
  options.external_profiler = config.profiling.use_nsys_profiler;
  set_ending(options, config, folder, place, launch);
  if (ranks != nullptr) options.meanwhile = [ranks] { return ranks->check(); };
  MB_ASSIGN(baselines::LiveSteps live, baselines::LiveSteps::create(folder));
  std::optional<Watch> watch;
  options.on_step = [&](const trainer::StepReport& r) {
    if (watch) watch->step_ended(r.index);
    (void)live.add(step_of(r, options));  // only watched: write_launch() has the steps that count
    fmt::print("step {} {} {:.6f}\n", r.index + 1, config.train.train_iters, r.loss);
  };
  const trainer::SampleSource sample = [&](int64_t index, std::span<int32_t> tokens) {
    return data->sample(index, tokens);
  };
  MB_ASSIGN(const auto replay, choices_of(layout, folder));
  trainer::RoutingTable routing(layout.sequence, layout.model.moe.top_k);
  options.replay = replay ? &*replay : nullptr;
  options.record = &routing;
  GradientRecorder recorder;
  if (config.debug.record_gradients) record_into(recorder, options);
  if (place && place->rank > 0) return train_beside(folder, place, layout, programs, sample, options);
  MB_TRY(check_snapshot_path(config, folder));
  watch.emplace(config, layout, place, folder);
  write_at_host_work(options, *watch);
  MB_ASSIGN(trainer::TrainResult result, trainer::train(layout, programs, sample, options));
  MB_TRY(watch->finish(launch));
  if (config.debug.record_gradients) MB_TRY(recorder.write(folder));
  if (layout.records_routing) MB_TRY(routing.write(folder / kRoutingFile));
  for (const trainer::StepReport& r : result.steps) launch.steps.push_back(step_of(r, options));
  add_bindings(launch, result);
  if (place) launch.counts.push_back({fmt::format("ranks are processes of {}", name(place->launcher)), place->size});
  launch.loss_checksum = baselines::loss_checksum(launch.steps);
  std::optional<profiler::Trace> trace = traced(result);
  count_capture(launch, result);
  MB_TRY(add_memory(launch, layout, programs, result.captured && trace ? &*trace : nullptr, result, folder));
  if (!trace) return {};
  keep_ranks(*trace, window);
  analysis::fill_op_rows(launch, *trace, analysis::break_down(*trace),
                         [&](int32_t rank) { return rank_class_name(layout, rank); });
  MB_ASSIGN(const auto lengths, row_lengths(layout));
  complete_op_rows(launch, layout, programs, lengths ? &*lengths : nullptr);
  launch.trace_files.push_back("trace.mbt");
  return profiler::write_trace(folder / "trace.mbt", *trace);
}

// The other ranks of several GPUs that no launcher started.
Result<std::unique_ptr<LocalRanks>> start_ranks(const std::filesystem::path& folder) {
  MB_ASSIGN(const trainer::Config config, read_config(folder));
  return local_ranks_of(config, folder);
}

}  // namespace

int run_launch(const std::filesystem::path& folder) {
  std::signal(SIGTERM, request_stop);
  std::signal(SIGINT, SIG_IGN);  // the parent decides what an interrupt at the terminal means
  baselines::Launch launch;
  launch.started_unix_ns = wall_ns();
  Status trained;
  std::unique_ptr<LocalRanks> ranks;
  if (auto started = start_ranks(folder); !started)
    trained = tl::unexpected<Error>(started.error());
  else
    ranks = std::move(*started);
  const auto place = trainer::place_if_any();
  if (trained) trained = train_into(folder, place, ranks.get(), launch);
  if (ranks != nullptr) {
    ranks->end();
    if (trained)
      for (const auto& of_rank : ranks->folders()) take_canary(of_rank, launch);
  }
  launch.ended_unix_ns = wall_ns();
  if (!trained) {
    const ErrorCode code = trained.error().code;
    launch.exit_status = code == ErrorCode::kCancelled     ? kExitAsked
                         : code == ErrorCode::kOutOfMemory ? kExitDoesNotFit
                                                           : kExitFailed;
    launch.reason = reason_of(trained.error());
    say(fmt::format("{}\n", format(trained.error())));
  }
  if (place && place->rank > 0) return launch.exit_status;
  if (const Status written = baselines::write_launch(folder, launch); !written) {
    say(fmt::format("{}\n", format(written.error())));
    return 1;
  }
  return launch.exit_status;
}

}  // namespace mbb::suites
