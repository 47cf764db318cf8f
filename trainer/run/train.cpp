// The training loop of a rank: batches by global sample index, the step record from the schedule, reports from rank
// 0.
#include "trainer/run/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "profiler/capture/capture.h"
#include "trainer/comm/local/run_ranks.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/execute/cpu/reference_work.h"
#include "trainer/execute/executor.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/optim/schedule.h"
#include "trainer/run/agree.h"
#include "trainer/run/batch_reader.h"
#include "trainer/run/cpu_binding.h"
#include "trainer/run/gradient_parts.h"
#include "trainer/run/inject_fault.h"
#include "trainer/run/rank_reports.h"
#include "trainer/run/trace_window.h"

namespace mbb::trainer {
namespace {

std::array<float, StepRecord::kFields> record_of(const OptimizerConfig& o, double rate, int64_t step) {
  std::array<float, StepRecord::kFields> record{};
  record[StepRecord::kLearningRate] = static_cast<float>(rate);
  record[StepRecord::kBiasCorrection1] =
      static_cast<float>(1.0 - std::pow(o.adam_beta1, static_cast<double>(step + 1)));
  record[StepRecord::kBiasCorrection2] =
      static_cast<float>(1.0 - std::pow(o.adam_beta2, static_cast<double>(step + 1)));
  record[StepRecord::kStep] = static_cast<float>(step);
  return record;
}

// What rank 0 makes, and what ranks of one process share: a capture is of the process.
struct Shared {
  Captures captures;
  TrainResult result;
  Patience patience;  // rank 0 tells it
};

// One rank's clocks over a step.
struct StepTimes {
  int64_t start_ns = 0, end_ns = 0, cpu_ns = 0, reference_ns = 0;
};

class RankLoop {
 public:
  RankLoop(const Layout& layout, const StepPrograms& programs, const SampleSource& data, const TrainOptions& options,
           World& world, Shared& shared)
      : l_(layout),
        programs_(programs),
        data_(data),
        options_(options),
        world_(world),
        shared_(shared),
        rank_(static_cast<size_t>(world.rank())) {}

  Status run() {
    // Over all ranks, whatever their mapping, before anything of a mapping is opened.
    std::vector<int> all(static_cast<size_t>(world_.size()));
    std::iota(all.begin(), all.end(), 0);
    MB_ASSIGN(everyone_, world_.group(GroupKind::kWorld, all));
    if (options_.on_joined) options_.on_joined();
    // Ranks that are threads have one configuration; processes have what each was told.
    if (options_.processes) MB_TRY(agree(*everyone_, l_.config, programs_));
    const auto rank_class = static_cast<size_t>(l_.mesh.rank_class_index(world_.rank()));
    MB_ASSIGN(auto rank, make_executor(l_.config.host, programs_.programs[rank_class], programs_.plans[rank_class],
                                       l_.mesh, world_, static_cast<uint64_t>(l_.config.train.seed)));
    MB_TRY(bind_rank(l_.config.host.cpu_binding, rank->device(), world_.rank(), l_.mesh.world_size()));
    MB_ASSIGN(std::vector<std::string> bindings, gather_at_first(*everyone_, binding_in_force()));
    if (rank_ == 0) shared_.result.bindings = std::move(bindings);
    TraceWindow window(options_, programs_, l_.mesh, world_.rank(), *everyone_, shared_.patience, shared_.captures);
    int64_t last = l_.config.train.train_iters - 1;
    for (int64_t step = 0; step <= last; ++step) {
      const bool was = step > 0 && window.has(step - 1), is = window.has(step);
      if (was && !is) MB_TRY(window.end(*rank));
      if (is && !was) MB_TRY(window.begin(*rank));
      MB_ASSIGN(const bool leave, inject_fault(l_.config.debug.inject_fault, world_.rank(), step,
                                               l_.config.train.train_iters, [&] { return rank->plant_trap(); }));
      if (leave) return {};
      MB_TRY(one_step(*rank, window, step));
      if (!works_after(step, last)) continue;
      MB_ASSIGN(const bool enough, host_work(step));
      if (enough) last = step;
    }
    if (window.has(last)) MB_TRY(window.end(*rank));
    const HostWorks at_the_end(shared_.patience, rank_ == 0);
    if (rank_ == 0) shared_.result.outside = rank->outside_arena();
    if (rank_ == 0) shared_.result.notes = rank->notes();
    return gather_stats(*rank);
  }

 private:
  // host.manual_gc_interval: after which steps all ranks do what waits for the host.
  bool works_after(int64_t step, int64_t last) const {
    const int64_t interval = std::max<int64_t>(1, l_.config.host.manual_gc_interval);
    return step == last || (step + 1) % interval == 0;
  }
  bool steps_wait_for_host_work() const { return l_.config.host.manual_gc_interval > 0; }

  // Hands the steps since the last time to rank 0, which reports them. True when rank 0 has seen enough.
  Result<bool> host_work(int64_t step) {
    MB_ASSIGN(const std::vector<std::string> all_times, gather_at_first(*everyone_, bytes_of_values(kept_times_)));
    std::vector<std::vector<std::string>> all_op_ns(kept_op_ns_.size());
    for (size_t i = 0; i < kept_op_ns_.size(); ++i) {
      if (kept_op_ns_[i].empty()) continue;  // the same steps on all ranks
      MB_ASSIGN(all_op_ns[i], gather_at_first(*everyone_, bytes_of_values(kept_op_ns_[i])));
    }
    kept_times_.clear();
    kept_op_ns_.clear();
    std::vector<StepReport> reports = std::exchange(kept_reports_, {});
    for (size_t i = 0; i < reports.size(); ++i) add_times(reports[i], i, all_times);
    // The word first: unaligned ranks go on with it while rank 0 does the rest.
    MB_ASSIGN(const bool enough, is_enough(reports));
    const HostWorks works(shared_.patience, rank_ == 0);
    for (size_t i = 0; i < reports.size(); ++i) {
      if (!all_op_ns[i].empty()) MB_TRY(replay_step(reports[i], all_op_ns[i]));
      shared_.result.steps.push_back(reports[i]);
      if (options_.on_step) options_.on_step(reports[i]);
    }
    if (options_.on_host_work) options_.on_host_work(world_.rank(), step);
    return enough;
  }

  // Rank 0's word on the steps that all have just done. Of processes only rank 0 may have one: all ask.
  Result<bool> is_enough(const std::vector<StepReport>& reports) const {
    if (!options_.enough && !options_.processes) return false;
    int32_t enough = options_.enough && std::any_of(reports.begin(), reports.end(), options_.enough) ? 1 : 0;
    MB_TRY(from_first(*everyone_, enough));
    return enough != 0;
  }

  Status gather_stats(const Executor& rank) {
    std::vector<CommStats> mine(kGroupKinds.size());
    for (size_t kind = 0; kind < mine.size(); ++kind) mine[kind] = rank.stats(static_cast<GroupKind>(kind));
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, bytes_of_values(mine)));
    for (size_t r = 0; r < all.size(); ++r) {
      const auto theirs = values_of_bytes<CommStats>(all[r]);
      std::copy(theirs.begin(), theirs.end(), shared_.result.comm[r].begin());
    }
    return {};
  }

  Status one_step(Executor& rank, TraceWindow& window, int64_t step) {
    const OptimizerConfig& o = l_.config.optimizer;
    const bool op_by_op = window.tracing() == Tracing::kOpByOp;
    const double rate = learning_rate(o, l_.config.train.train_iters, step);
    StepInput input;
    input.record = record_of(o, rate, step);
    const MeshCoordinates at = l_.mesh.coordinates(world_.rank());
    const BatchReader reader{
        l_, data_, options_.sequences, step, at.dp, l_.positions(at.cp), l_.encoder_positions(at.cp)};
    input.batch = [&](int m, std::span<int32_t> tokens, std::span<int32_t> labels) {
      return reader.tokens_and_labels(m, tokens, labels);
    };
    input.extra = [&](int m, std::span<int32_t> samples, std::span<int32_t> encoder_tokens) {
      return reader.samples_and_encoder(m, samples, encoder_tokens);
    };
    input.starts = [&](int m, std::span<int32_t> first) { return reader.starts(m, first); };
    input.encoder_starts = [&](int m, std::span<int32_t> first) { return reader.encoder_starts(m, first); };
    input.sequences = [&](int m, std::span<int32_t> of) { return reader.sequences_of(m, of); };
    if (l_.replays_routing)
      input.routing = [&](int m, const RoutingPort& router, std::span<int32_t> experts) {
        std::fill(experts.begin(), experts.end(), -1);  // as padding has it
        return reader.each_token(router, m, at.tp, experts, l_.model.moe.top_k,
                                 [&](int64_t sample, int64_t place, std::span<int32_t> of) {
                                   return options_.replay->get(router.router, sample, place, of);
                                 });
      };
    if (steps_wait_for_host_work() || step == 0) MB_TRY(everyone_->barrier());
    if (options_.stop && options_.stop->load())
      return fail(ErrorCode::kCancelled, fmt::format("stopped before step {}", step));
    std::vector<int64_t> op_ns;
    StepTimes times;
    const int64_t cpu_begin = thread_cpu_ns();
    times.start_ns = monotonic_ns();
    MB_ASSIGN(const StepOutput output, rank.step(input, op_by_op ? &op_ns : nullptr));
    times.end_ns = monotonic_ns();
    window.step_ran(step, times.start_ns, times.end_ns);
    times.cpu_ns = thread_cpu_ns() - cpu_begin;
    if (l_.config.profiling.reference_work) times.reference_ns = reference_work_ns();
    if (rank_ == 0) shared_.patience.step_took(times.end_ns - times.start_ns);
    if (options_.on_gradient) {
      const HostWorks works(shared_.patience, rank_ == 0);
      MB_TRY(hand_out_gradients(rank, programs_, l_.mesh, world_.rank(), *everyone_, step, options_.on_gradient));
    }
    if (l_.records_routing) MB_TRY(record_routing(rank, reader, at.tp));
    if (output.found_inf || !std::isfinite(output.loss())) {
      if (!kept_times_.empty()) MB_TRY(host_work(step - 1));  // the good steps before it
      return not_finite(rank, input, output, step);
    }
    kept_times_.push_back(times);
    kept_op_ns_.push_back(std::move(op_ns));
    if (rank_ == 0) kept_reports_.push_back(report_of(output, rank.device_times(), step, rate));
    return {};
  }

  Status record_routing(Executor& rank, const BatchReader& reader, int tp) const {
    const Program& program = programs_.of_rank(l_.mesh, world_.rank());
    const int64_t top_k = l_.model.moe.top_k;
    RoutingTable mine(l_.sequence, top_k);
    for (const RoutingPort& router : program.ports.routing) {
      const Tensor& t = program.tensor(router.experts);
      std::vector<int32_t> experts(static_cast<size_t>(t.shape.elements()));
      for (int m = 0; m < program.micro_batches; ++m) {
        MB_TRY(rank.read(router.experts, m % t.ring, std::as_writable_bytes(std::span(experts))));
        MB_TRY(reader.each_token(router, m, tp, experts, top_k,
                                 [&](int64_t sample, int64_t place, std::span<int32_t> of) -> Status {
                                   mine.set(router.router, sample, place, of);
                                   return {};
                                 }));
      }
    }
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, mine.bytes()));
    for (const std::string& bytes : all) {
      MB_ASSIGN(const RoutingTable theirs, RoutingTable::of_bytes(bytes));
      if (options_.record != nullptr) options_.record->add(theirs);
    }
    return {};
  }

  // Every rank comes here on the same step: loss and norm are sums over all. The optimizer has changed nothing, so the
  // step runs again as it was. Collectives only hand on what is not finite: the culprit is an op of a rank's own, and
  // what the step began with was there before all of them.
  Status not_finite(Executor& rank, const StepInput& input, const StepOutput& output, int64_t step) {
    const auto shown = [](double value) { return std::isnan(value) ? std::string("nan") : fmt::format("{}", value); };
    std::string what = fmt::format("step {}: loss {} and gradient norm {} are not both finite", step,
                                   shown(output.loss()), shown(output.grad_norm));
    // No optimizer has changed anything before step 0.
    const char* const lower = step > 0 ? "lower optimizer.lr" : "lower optimizer.init_method_std";
    if (!l_.config.debug.nan_trace)
      return fail(ErrorCode::kNumerics, what, fmt::format("{}; debug.nan_trace = true names the first op", lower));
    MB_ASSIGN(const std::optional<NotFinite> mine, rank.find_not_finite(input));
    constexpr char kOfStepBefore = '0', kOwn = '1', kCommunicates = '2';  // the earlier the more likely the culprit
    std::string told;                                                     // one of these, micro-batch, op, tensor
    if (mine)
      told = fmt::format("{}\n{}\n{}\n{}",
                         mine->step_before    ? kOfStepBefore
                         : mine->communicates ? kCommunicates
                                              : kOwn,
                         mine->micro_batch, mine->op, mine->tensor);
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, told));
    // Rank 0 has them all, and its error ends this wait.
    if (rank_ != 0) return everyone_->barrier();
    const std::string* first = nullptr;
    size_t at = 0;
    for (size_t r = 0; r < all.size(); ++r)
      if (!all[r].empty() && (first == nullptr || all[r].front() < first->front())) first = &all[r], at = r;
    std::string hint = fmt::format("{} or raise the precision of that op's inputs", lower);
    if (first != nullptr) {
      const auto parts = split(*first, '\n');
      if (first->front() != kOfStepBefore) {
        what += fmt::format("; the first such value is written by op {} ({}, rank {}, micro-batch {})", parts[2],
                            parts[3], at, parts[1]);
      } else if (step > 0) {
        what += fmt::format("; the first such value was written by op {} in step {} ({}, rank {})", parts[2], step - 1,
                            parts[3], at);
        hint = "lower optimizer.lr or optimizer.weight_decay";
      } else {
        what += fmt::format("; {} of rank {} began with such values", parts[3], at);
        hint = "lower optimizer.init_method_std";
      }
    }
    return fail(ErrorCode::kNumerics, what, hint);
  }

  // Times of the `at`-th step that is reported now.
  void add_times(StepReport& r, size_t at, const std::vector<std::string>& all_times) const {
    int64_t first = INT64_MAX, last = 0;
    for (const std::string& bytes : all_times) {
      const StepTimes times = values_of_bytes<StepTimes>(bytes).at(at);
      first = std::min(first, times.start_ns);
      last = std::max(last, times.end_ns);
      // Processes of several hosts have no clock in common: the longest step of a rank.
      if (options_.processes) r.wall_ns = std::max(r.wall_ns, times.end_ns - times.start_ns);
      r.cpu_ns += times.cpu_ns;
      r.reference_ns += times.reference_ns;
    }
    if (!options_.processes) r.wall_ns = last - first;
  }

  StepReport report_of(const StepOutput& output, const DeviceTimes& device, int64_t step, double rate) const {
    StepReport r;
    r.index = step;
    r.device_ns = device.step_ns;
    r.device_forward_backward_ns = device.forward_backward_ns;
    r.loss = output.loss();
    if (l_.model.moe.aux_loss_coefficient != 0) r.balance_loss = output.balance_loss_sum / output.tokens;
    if (l_.model.moe.z_loss_coefficient != 0) r.z_loss = output.z_loss_sum / output.tokens;
    if (output.mtp_tokens > 0) r.mtp_loss = output.mtp_loss_sum / output.mtp_tokens;
    r.grad_norm = output.grad_norm;
    r.learning_rate = rate;
    r.tokens = static_cast<int64_t>(output.tokens);
    add_squares(r, step);
    return r;
  }

  Status replay_step(StepReport& r, const std::vector<std::string>& all_op_ns) {
    std::vector<std::vector<int64_t>> op_ns;
    for (const std::string& bytes : all_op_ns) op_ns.push_back(values_of_bytes<int64_t>(bytes));
    MB_ASSIGN(Replay replayed, replay(l_.mesh, programs_.by_rank(l_.mesh),
                                      [&](int rank, size_t i) { return op_ns[static_cast<size_t>(rank)][i]; }));
    r.modelled_ns = replayed.step_ns;
    for (auto& window : replayed.trace.steps) window.step = static_cast<int32_t>(r.index);
    for (auto& span : replayed.trace.spans) span.step = static_cast<int32_t>(r.index);
    shared_.result.traces.push_back(std::move(replayed.trace));
    shared_.result.op_ns.push_back(std::move(op_ns));
    return {};
  }

  void add_squares(StepReport& r, int64_t step) const {
    if (options_.sequences == nullptr) {
      r.squares = l_.global_batch * l_.sequence * l_.sequence;
      return;
    }
    int64_t most = 0;
    for (int dp = 0; dp < l_.dp; ++dp) {
      const BatchReader reader{l_, data_, options_.sequences, step, dp};
      int64_t squares = 0;
      for (int m = 0; m < l_.micro_batches; ++m)
        for (size_t i = 0; i < static_cast<size_t>(l_.micro_batch); ++i)
          squares += options_.sequences->facts(reader.index(m, i)).squares;
      r.squares += squares;
      most = std::max(most, squares);
    }
    r.imbalance = static_cast<double>(most * l_.dp) / static_cast<double>(r.squares);
  }

  const Layout& l_;
  const StepPrograms& programs_;
  const SampleSource& data_;
  const TrainOptions& options_;
  World& world_;
  Shared& shared_;
  size_t rank_;
  std::unique_ptr<Communicator> everyone_;
  // Of the steps since the last host work; reports on rank 0, op times empty where a step is not traced.
  std::vector<StepTimes> kept_times_;
  std::vector<std::vector<int64_t>> kept_op_ns_;
  std::vector<StepReport> kept_reports_;
};

}  // namespace

Result<TrainResult> train(const Layout& layout, const StepPrograms& programs, const SampleSource& data,
                          const TrainOptions& options) {
  MB_TRY(check_memory(layout, programs));
  MB_CHECK(layout.has_sequences() == (options.sequences != nullptr), "rows of sequences come with packing.sequences");
  MB_TRY(check_replay(layout, options.replay));
  const int ranks = layout.mesh.world_size();
  Shared shared;
  shared.captures.ranks.resize(static_cast<size_t>(ranks));
  shared.result.comm.resize(static_cast<size_t>(ranks));
  shared.result.bindings.resize(static_cast<size_t>(ranks));
  const auto rank_main = [&](World& world) { return RankLoop(layout, programs, data, options, world, shared).run(); };
  const Patience* const patience = options.no_progress_ms == 0 ? &shared.patience : nullptr;
  Status trained;
  if (options.processes) {
    trained = run_mpi_rank(rank_main, {options.no_progress_ms, patience, options.stuck_grace_ms, options.on_stuck,
                                       options.places_file, options.meanwhile});
  } else {
    LocalOptions local;
    local.no_progress_ms = options.no_progress_ms;
    local.patience = patience;
    local.stuck_grace_ms = options.stuck_grace_ms;
    local.on_stuck = options.on_stuck;
    local.places_file = options.places_file;
    trained = run_ranks(ranks, rank_main, local);
  }
  // A run that failed inside its window leaves the process as it found it.
  if (!trained && shared.captures.attached) static_cast<void>(profiler::end_capture());
  MB_TRY(trained);
  shared.result.captured = std::move(shared.captures.device);
  shared.result.alignment = std::move(shared.captures.alignment);
  shared.result.capture_note = std::move(shared.captures.note);
  return std::move(shared.result);
}

}  // namespace mbb::trainer
