// The training loop of a rank: batches by global sample index, the step record from the schedule, reports from rank
// 0.
#include "trainer/run/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "profiler/capture/capture.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/host_memory.h"
#include "trainer/comm/local/run_ranks.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/comm/process_place.h"
#include "trainer/execute/cpu/reference_work.h"
#include "trainer/execute/executor.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/execute/op_sites.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/models/transformer.h"
#include "trainer/ops/op_kind.h"
#include "trainer/optim/schedule.h"
#include "trainer/passes/precision.h"
#include "trainer/program/packed_rows.h"
#include "trainer/program/verify.h"
#include "trainer/run/cpu_binding.h"
#include "trainer/run/idle_passes.h"
#include "trainer/run/inject_fault.h"
#include "trainer/run/join_captures.h"
#include "trainer/run/knobs.h"
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {
namespace {

// Where the samples of a micro-batch come from and go to.
struct BatchReader {
  const Layout& layout;
  const SampleSource& data;
  const SequenceDataset* sequences;
  int64_t step;
  int dp_rank;
  Positions positions, encoder_positions;  // of this context-parallel rank

  // Samples of micro-batch m on data-parallel rank d are [(m·dp + d)·b, ... + b) of the step's global batch.
  int64_t index(int micro_batch, size_t i) const {
    return step * layout.global_batch + (int64_t{micro_batch} * layout.dp + dp_rank) * layout.micro_batch +
           static_cast<int64_t>(i);
  }

  // A sample is the encoder's tokens (if there is one), then the decoder's, then one label more. Of both a
  // context-parallel rank takes its own.
  Status tokens_and_labels(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const {
    if (sequences != nullptr) return rows(micro_batch, tokens, labels);
    std::vector<int32_t> sample(static_cast<size_t>(layout.sample_tokens()));
    const auto b = static_cast<size_t>(layout.micro_batch);
    const auto first = static_cast<size_t>(layout.encoder_sequence);
    for (size_t i = 0; i < b; ++i) {
      MB_TRY(data(index(micro_batch, i), sample));
      for (size_t s = 0; s < static_cast<size_t>(layout.local_sequence()); ++s) {
        const size_t at = first + static_cast<size_t>(positions.at(static_cast<int64_t>(s)));
        if (!tokens.empty()) tokens[s * b + i] = sample[at];
        if (!labels.empty()) labels[s * b + i] = sample[at + 1];
      }
    }
    return {};
  }

  Status rows(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const {
    const auto b = static_cast<size_t>(layout.micro_batch);
    const auto length = static_cast<size_t>(layout.sequence);
    std::vector<int32_t> row_tokens(tokens.empty() ? 0 : length), row_labels(labels.empty() ? 0 : length);
    std::vector<int32_t> first = room_for_starts();
    for (size_t i = 0; i < b; ++i) {
      MB_TRY(sequences->row(index(micro_batch, i), row_tokens, row_labels, first));
      std::vector<PackedRow> mine;
      if (layout.reads_starts()) mine = packed_rows(positions, first, layout.local_sequence());
      for (size_t s = 0; s < static_cast<size_t>(layout.local_sequence()); ++s) {
        const auto at = static_cast<size_t>(mine.empty() ? positions.at(static_cast<int64_t>(s)) : mine[s].at);
        if (!tokens.empty()) tokens[s * b + i] = row_tokens[at];
        if (!labels.empty()) labels[s * b + i] = row_labels[at];
      }
    }
    return {};
  }

  // Visits every token of rows [s, b] that a router of this context-parallel rank reads, of tensor-parallel rank `tp`
  // alone where they are cut: its sample, its place there, its experts.
  template <typename Visit>
  Status each_token(const RoutingPort& router, int micro_batch, int tp, std::span<int32_t> experts, int64_t top_k,
                    Visit&& visit) const {
    const int64_t b = layout.micro_batch, tokens = static_cast<int64_t>(experts.size()) / top_k;
    const int64_t before = router.sequence_sharded ? tp * tokens : 0;
    std::vector<PackedRow> mine;
    if (sequences != nullptr && layout.reads_starts()) {
      std::vector<int32_t> first = room_for_starts();
      MB_TRY(starts(micro_batch, first));
      mine = packed_rows(positions, first, layout.local_sequence());
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = (before + t) / b;
      const int64_t place = mine.empty() ? positions.at(row) : mine[static_cast<size_t>(row)].at;
      MB_TRY(visit(index(micro_batch, static_cast<size_t>((before + t) % b)), place,
                   experts.subspan(static_cast<size_t>(t * top_k), static_cast<size_t>(top_k))));
    }
    return {};
  }

  std::vector<int32_t> room_for_starts() const {
    return std::vector<int32_t>(layout.reads_starts() ? static_cast<size_t>(layout.sequences_of_row()) + 1 : 0);
  }

  Status starts(int micro_batch, std::span<int32_t> first) const {
    return sequences->row(index(micro_batch, 0), {}, {}, first);
  }
  Status encoder_starts(int micro_batch, std::span<int32_t> first) const {
    return sequences->encoder_row(index(micro_batch, 0), {}, first);
  }

  Status samples_and_encoder(int micro_batch, std::span<int32_t> samples, std::span<int32_t> encoder_tokens) const {
    std::vector<int32_t> sample(static_cast<size_t>(layout.sample_tokens()));
    const auto b = static_cast<size_t>(layout.micro_batch);
    for (size_t i = 0; i < b; ++i) {
      if (!samples.empty()) samples[i] = static_cast<int32_t>(index(micro_batch, i));
      if (encoder_tokens.empty()) continue;
      std::vector<PackedRow> mine;
      if (sequences != nullptr) {
        std::vector<int32_t> first = room_for_starts();
        const auto row = std::span(sample).first(static_cast<size_t>(layout.encoder_sequence));
        MB_TRY(sequences->encoder_row(index(micro_batch, i), row, first));
        mine = packed_rows(encoder_positions, first, layout.local_encoder_sequence());
      } else {
        MB_TRY(data(index(micro_batch, i), sample));
      }
      for (int64_t s = 0; s < layout.local_encoder_sequence(); ++s) {
        const int64_t at = mine.empty() ? encoder_positions.at(s) : mine[static_cast<size_t>(s)].at;
        encoder_tokens[static_cast<size_t>(s) * b + i] = sample[static_cast<size_t>(at)];
      }
    }
    return {};
  }
};

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

// How the steps of the window are traced.
enum class Tracing { kOff, kOpByOp, kCapture, kExternal };

// What rank 0 makes, and what ranks of one process share: a capture is of the process.
struct Shared {
  bool capturing = false;
  std::vector<profiler::CapturedRank> captured;
  TrainResult result;
  Patience patience;  // rank 0 tells it
};

// One rank's clocks over a step.
struct StepTimes {
  int64_t start_ns = 0, end_ns = 0, cpu_ns = 0, reference_ns = 0;
};

// A part of a weight's gradient, as it travels to rank 0: this, then `count` floats.
struct GradientPart {
  int64_t tensor = 0, first = 0, count = 0;
};

// Kinds of groups that any of the programs communicates over.
std::vector<GroupKind> groups_of_world(const std::vector<Program>& programs) {
  std::set<GroupKind> groups;
  for (const Program& program : programs)
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops)
        if (const auto* attrs = std::get_if<CommAttrs>(&op.attrs); attrs != nullptr && op.kind->communicates)
          groups.insert(attrs->group);
  return {groups.begin(), groups.end()};
}

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
    const auto rank_class = static_cast<size_t>(l_.mesh.rank_class_index(world_.rank()));
    MB_ASSIGN(auto rank, make_executor(l_.config.host, programs_.programs[rank_class], programs_.plans[rank_class],
                                       l_.mesh, world_, static_cast<uint64_t>(l_.config.train.seed)));
    MB_TRY(bind_rank(l_.config.host.cpu_binding, rank->device(), world_.rank(), l_.mesh.world_size()));
    MB_ASSIGN(everyone_, world_.group(GroupKind::kWorld, l_.mesh));
    MB_TRY(agree());
    MB_ASSIGN(std::vector<std::string> bindings, gather_at_first(*everyone_, binding_in_force()));
    if (rank_ == 0) shared_.result.bindings = std::move(bindings);
    if (options_.on_joined) options_.on_joined();
    int64_t last = l_.config.train.train_iters - 1;
    for (int64_t step = 0; step <= last; ++step) {
      const bool was = step > 0 && in_window(step - 1), is = in_window(step);
      if (was && !is) MB_TRY(end_window(*rank));
      if (is && !was) MB_TRY(begin_window(*rank));
      MB_ASSIGN(const bool leave, inject_fault(l_.config.debug.inject_fault, world_.rank(), step,
                                               l_.config.train.train_iters, [&] { return rank->plant_trap(); }));
      if (leave) return {};
      MB_TRY(one_step(*rank, step));
      if (!works_after(step, last)) continue;
      MB_ASSIGN(const bool enough, host_work(step));
      if (enough) last = step;
    }
    if (in_window(last)) MB_TRY(end_window(*rank));
    const HostWorks at_the_end(shared_.patience, rank_ == 0);
    if (rank_ == 0) shared_.result.outside = rank->outside_arena();
    if (rank_ == 0) shared_.result.notes = rank->notes();
    return gather_stats(*rank);
  }

 private:
  bool in_window(int64_t step) const {
    if (step < options_.trace_first || options_.trace_first >= options_.trace_end) return false;
    const int64_t since = step - options_.trace_first, length = options_.trace_end - options_.trace_first;
    return (options_.trace_period > 0 ? since % options_.trace_period : since) < length;
  }

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

  // Ranks that are threads have one configuration; processes have what each was told.
  Status agree() const {
    if (!options_.processes) return {};
    const std::string mine = "build.commit=" + profiler::build_commit() + "\n" + knobs().to_lines(l_.config);
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, mine));
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      const auto lines = split(all[0], '\n'), theirs = split(all[r], '\n');
      size_t at = 0;
      while (at + 1 < lines.size() && at + 1 < theirs.size() && lines[at] == theirs[at]) ++at;
      return fail(ErrorCode::kMismatch,
                  fmt::format("rank {} has {} where rank 0 has {}", r, printable(theirs[at]), printable(lines[at])),
                  "start every process with the same program, arguments, settings files and MBBENCH_ variables");
    }
    return {};
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

  // Rank 0 decides and attaches while all others wait; processes attach each to itself.
  Status begin_window(Executor& rank) {
    const HostWorks works(shared_.patience, rank_ == 0);
    MB_TRY(everyone_->barrier());
    if (rank_ == 0 || options_.processes) MB_TRY(choose_tracing(rank));
    if (options_.processes) MB_TRY(all_capture());
    auto chosen = static_cast<int32_t>(tracing_);
    MB_TRY(from_first(*everyone_, chosen));
    const auto mine = std::exchange(tracing_, static_cast<Tracing>(chosen));
    if (options_.processes && mine == Tracing::kCapture && tracing_ != Tracing::kCapture) {
      shared_.capturing = false;
      MB_TRY(profiler::end_capture().map([](const auto&) {}));
    }
    if (tracing_ != Tracing::kCapture) return {};
    profiler::CapturedRank& captured = shared_.captured[rank_];
    captured.rank = world_.rank();
    captured.device = rank.device();
    captured.steps.clear();
    captured.sites = op_sites(programs_.of_rank(l_.mesh, world_.rank()), l_.mesh, world_.rank());
    return rank.capture_changed();
  }

  // Where one process cannot capture, none does.
  Status all_capture() {
    const std::string why = tracing_ == Tracing::kCapture ? "" : shared_.result.capture_note;
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, why));
    if (rank_ != 0 || tracing_ != Tracing::kCapture) return {};
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r].empty()) continue;
      tracing_ = Tracing::kOpByOp;
      shared_.result.capture_note = fmt::format("{} (rank {})", all[r], r);
      // This process is attached; begin_window() detaches every one that is.
      shared_.capturing = false;
      return profiler::end_capture().map([](const auto&) {});
    }
    return {};
  }

  Status choose_tracing(const Executor& rank) {
    tracing_ = Tracing::kOpByOp;
    if (rank.device() < 0) return {};
    if (options_.external_profiler) {
      tracing_ = Tracing::kExternal;
      shared_.result.capture_note = "the window was left to an external profiler";
      return profiler::profiler_range(true);
    }
    if (!options_.capture) return {};
    const Status begun = profiler::begin_capture();
    shared_.capturing = begun.has_value();
    if (begun)
      tracing_ = Tracing::kCapture;
    else
      shared_.result.capture_note = "timed op by op: " + begun.error().what;
    return {};
  }

  Status end_window(Executor& rank) {
    const HostWorks works(shared_.patience, rank_ == 0);
    MB_TRY(everyone_->barrier());
    const Tracing was = std::exchange(tracing_, Tracing::kOff);
    if (rank_ == 0 || options_.processes) MB_TRY(finish_tracing(was));
    MB_TRY(everyone_->barrier());
    return was == Tracing::kCapture ? rank.capture_changed() : Status{};
  }

  Status finish_tracing(Tracing was) {
    if (was == Tracing::kExternal) return profiler::profiler_range(false);
    if (was != Tracing::kCapture) return {};
    shared_.capturing = false;
    MB_ASSIGN(const profiler::CaptureRecords records, profiler::end_capture());
    if (!options_.processes) {
      shared_.result.captured = profiler::device_trace(records, shared_.captured);
      return {};
    }
    MB_ASSIGN(JoinedCapture joined,
              join_captures(*everyone_, profiler::device_trace(records, {&shared_.captured[rank_], 1})));
    if (rank_ != 0) return {};
    shared_.result.captured = std::move(joined.device);
    shared_.result.alignment = std::move(joined.alignment);
    return {};
  }

  Status one_step(Executor& rank, int64_t step) {
    const OptimizerConfig& o = l_.config.optimizer;
    const bool op_by_op = tracing_ == Tracing::kOpByOp;
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
    if (l_.replays_routing)
      input.routing = [&](int m, const RoutingPort& router, std::span<int32_t> experts) {
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
    if (tracing_ == Tracing::kCapture)
      shared_.captured[rank_].steps.push_back(
          {world_.rank(), static_cast<int32_t>(step), times.start_ns, times.end_ns});
    times.cpu_ns = thread_cpu_ns() - cpu_begin;
    if (l_.config.profiling.reference_work) times.reference_ns = reference_work_ns();
    if (rank_ == 0) shared_.patience.step_took(times.end_ns - times.start_ns);
    if (options_.on_gradient) MB_TRY(hand_out_gradients(rank, step));
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

  Status hand_out_gradients(Executor& rank, int64_t step) const {
    const HostWorks works(shared_.patience, rank_ == 0);
    MB_ASSIGN(const std::string mine, gradient_parts(rank));
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, mine));
    for (size_t r = 0; r < all.size(); ++r) {
      const MeshCoordinates at = l_.mesh.coordinates(static_cast<int>(r));
      const Program& program = programs_.of_rank(l_.mesh, static_cast<int>(r));
      for (std::string_view rest = all[r]; !rest.empty();) {
        const GradientPart part = values_of_bytes<GradientPart>(rest.substr(0, sizeof(GradientPart))).at(0);
        rest.remove_prefix(sizeof(GradientPart));
        const size_t bytes = static_cast<size_t>(part.count) * sizeof(float);
        options_.on_gradient(at, step, program.tensor(static_cast<TensorId>(part.tensor)), part.first,
                             values_of_bytes<float>(rest.substr(0, bytes)));
        rest.remove_prefix(bytes);
      }
    }
    return {};
  }

  // An optimizer op's shard of its bucket, cut into the weights it holds parts of.
  Result<std::string> gradient_parts(Executor& rank) const {
    const Program& program = programs_.of_rank(l_.mesh, world_.rank());
    std::map<std::string_view, int64_t> weights;
    for (size_t id = 0; id < program.tensors.size(); ++id)
      if (program.tensors[id].main_grad != kNoTensor) weights[program.tensors[id].path] = static_cast<int64_t>(id);
    std::string parts;
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        const auto* adam = std::get_if<AdamAttrs>(&op.attrs);
        if (adam == nullptr) continue;
        const BucketAttrs& bucket = adam->bucket;
        MB_ASSIGN(const std::vector<float> held, values_of(rank, program, op.in[0]));
        const int64_t shard = program.tensor(op.in[2]).shape.elements();  // as many moments as elements it updates
        const int64_t begin = bucket.sharded ? shard * l_.mesh.group_index(bucket.shard_group, world_.rank()) : 0;
        const int64_t first = static_cast<int64_t>(held.size()) == shard ? begin : 0;
        for (const BucketRange& range : bucket.ranges) {
          const int64_t from = std::max(range.offset, begin);
          const int64_t to = std::min(range.offset + range.count, begin + shard);
          if (from >= to) continue;
          parts += bytes_of_values<GradientPart>({{weights.at(range.path), from - range.offset, to - from}});
          parts.append(reinterpret_cast<const char*>(held.data() + (from - first)),
                       static_cast<size_t>(to - from) * sizeof(float));
        }
      }
    }
    return parts;
  }

  static Result<std::vector<float>> values_of(Executor& rank, const Program& program, TensorId id) {
    const Tensor& t = program.tensor(id);
    std::vector<float> values(static_cast<size_t>(t.shape.elements()));
    if (t.dtype == DType::kF32) {
      MB_TRY(rank.read(id, 0, std::as_writable_bytes(std::span(values))));
      return values;
    }
    MB_CHECK(t.dtype == DType::kBf16, "gradients are f32 or bf16: " + t.path);
    std::vector<Bf16> narrow(values.size());
    MB_TRY(rank.read(id, 0, std::as_writable_bytes(std::span(narrow))));
    std::transform(narrow.begin(), narrow.end(), values.begin(), [](Bf16 v) { return to_float(v); });
    return values;
  }

  // Every rank comes here on the same step: loss and norm are sums over all. The optimizer has changed nothing, so the
  // step runs again as it was. Collectives only hand on what is not finite: the culprit is an op of a rank's own.
  Status not_finite(Executor& rank, const StepInput& input, const StepOutput& output, int64_t step) {
    const auto shown = [](double value) { return std::isnan(value) ? std::string("nan") : fmt::format("{}", value); };
    std::string what = fmt::format("step {}: loss {} and gradient norm {} are not both finite", step,
                                   shown(output.loss()), shown(output.grad_norm));
    if (!l_.config.debug.nan_trace)
      return fail(ErrorCode::kNumerics, what, "lower optimizer.lr; debug.nan_trace = true names the first op");
    MB_ASSIGN(const std::optional<NotFinite> mine, rank.find_not_finite(input));
    std::string told;  // communicates, micro-batch, op, tensor
    if (mine)
      told = fmt::format("{}\n{}\n{}\n{}", mine->communicates ? 1 : 0, mine->micro_batch, mine->op, mine->tensor);
    MB_ASSIGN(const std::vector<std::string> all, gather_at_first(*everyone_, told));
    // Rank 0 has them all, and its error ends this wait.
    if (rank_ != 0) return everyone_->barrier();
    const std::string* first = nullptr;
    size_t at = 0;
    for (size_t r = 0; r < all.size(); ++r)
      if (!all[r].empty() && (first == nullptr || (first->front() == '1' && all[r].front() == '0')))
        first = &all[r], at = r;
    if (first != nullptr) {
      const auto parts = split(*first, '\n');
      what += fmt::format("; the first such value is written by op {} ({}, rank {}, micro-batch {})", parts[2],
                          parts[3], at, parts[1]);
    }
    return fail(ErrorCode::kNumerics, what, "lower optimizer.lr or raise the precision of that op's inputs");
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
  Tracing tracing_ = Tracing::kOff;
  std::unique_ptr<Communicator> everyone_;
  // Of the steps since the last host work; reports on rank 0, op times empty where a step is not traced.
  std::vector<StepTimes> kept_times_;
  std::vector<std::vector<int64_t>> kept_op_ns_;
  std::vector<StepReport> kept_reports_;
};

}  // namespace

std::vector<const Program*> StepPrograms::by_rank(const Mesh& mesh) const {
  std::vector<const Program*> all;
  for (int rank = 0; rank < mesh.world_size(); ++rank) all.push_back(&of_rank(mesh, rank));
  return all;
}

namespace {

// A pattern that names no weight, or a stage without any weight that trains, is a mistake.
Status check_frozen(const Layout& layout, const StepPrograms& built) {
  std::vector<std::string_view> unmatched;
  if (!layout.config.memory.frozen.empty()) unmatched = split(layout.config.memory.frozen, ',');
  for (const Program& program : built.programs) {
    bool trains = false;
    for (const Tensor& t : program.tensors) {
      trains = trains || t.main_grad != kNoTensor;
      if (t.category == Category::kWeight && t.init.kind != Init::Kind::kNone)
        std::erase_if(unmatched, [&](std::string_view p) { return glob_match(p, t.path); });
    }
    if (!trains)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("memory.frozen = {} leaves nothing to train on stage {}", layout.config.memory.frozen,
                              program.rank_class.pp),
                  "freeze less, or use fewer stages");
  }
  if (unmatched.empty()) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("memory.frozen: no weight has a path like '{}'", printable(unmatched.front())),
              "mbbench explain --lifetimes lists the paths; '*' stands for any text");
}

}  // namespace

namespace {

// work(i) of every rank class, which have nothing to do with each other, on the cores there are; the first one's error.
Status each_class(size_t classes, const std::function<Status(size_t)>& work) {
  std::vector<Status> done(classes);
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < classes; i = next++) done[i] = work(i);
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min<size_t>(classes, std::thread::hardware_concurrency()); ++t) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
  for (Status& status : done) MB_TRY(std::move(status));
  return {};
}

}  // namespace

Result<StepPrograms> build_programs(const Layout& layout) {
  StepPrograms built;
  const auto classes = static_cast<size_t>(layout.mesh.rank_class_count());
  built.programs.resize(classes);
  built.effects.resize(classes);
  built.plans.resize(classes);
  MB_TRY(each_class(classes, [&](size_t i) -> Status {
    const int rank = layout.mesh.representative(static_cast<int>(i));
    built.programs[i] = build_program(layout, layout.mesh.rank_class(rank), &built.effects[i]);
    return {};
  }));
  MB_TRY(check_frozen(layout, built));
  const MemoryConfig& memory = layout.config.memory;
  const PlanOptions options{memory.expandable_segments, memory.avoid_record_streams, memory.nccl_ub.value_or(false)};
  const auto plan = [&](size_t i) -> Status {
    MB_TRY(check_block_shapes(built.programs[i]));
    if (layout.config.host.device == Device::kCuda) MB_TRY(check_fp8_rows(built.programs[i]));
    MB_TRY(verify(built.programs[i]));
    built.plans[i] = plan_memory(built.programs[i], options);
    if (layout.config.host.device == Device::kCuda) {
      const GraphMemory graphs = graph_memory(layout.config.host, built.programs[i], built.plans[i]);
      built.plans[i].graph_ops = graphs.ops;
      built.plans[i].graph_bytes = graphs.bytes;
    }
    return {};
  };
  MB_TRY(each_class(classes, plan));
  note_idle_passes(layout, built);
  const std::vector<GroupKind> groups = groups_of_world(built.programs);
  for (Program& program : built.programs) program.groups = groups;
  return built;
}

Status check_memory(const Layout& layout, const StepPrograms& programs, int64_t capacity_bytes) {
  const auto limit = static_cast<int64_t>(layout.config.memory.limit_gib * 0x1p30);
  const int64_t capacity = limit == 0 || (capacity_bytes > 0 && capacity_bytes < limit) ? capacity_bytes : limit;
  if (capacity == 0) {
    if (layout.config.host.device != Device::kCpu) return {};
    const auto place = place_if_any();
    return check_host_memory(layout, programs, profiler::available_memory_bytes(),
                             place ? place->local_size : layout.mesh.world_size());
  }
  for (size_t i = 0; i < programs.programs.size(); ++i)
    if (Status fits = check_fits(programs.programs[i], programs.plans[i], capacity); !fits)
      return tl::unexpected<Error>(
          std::move(fits.error()).during(fmt::format("stage {}", programs.programs[i].rank_class.pp)));
  return {};
}

Status check_host_memory(const Layout& layout, const StepPrograms& programs, int64_t host_bytes, int ranks) {
  if (host_bytes == 0) return {};
  const auto bytes_of = [](const MemoryPlan& plan) { return plan.arena_bytes + plan.host_bytes; };
  int64_t together = 0;
  size_t largest = 0;
  for (int rank = 0; rank < std::min(ranks, layout.mesh.world_size()); ++rank) {
    const auto at = static_cast<size_t>(layout.mesh.rank_class_index(rank));
    together += bytes_of(programs.plans[at]);
    if (bytes_of(programs.plans[at]) > bytes_of(programs.plans[largest])) largest = at;
  }
  if (together <= host_bytes) return {};
  // The largest is above an equal share, where the sum is above all shares.
  Status fits = check_fits(programs.programs[largest], programs.plans[largest], host_bytes / std::max(1, ranks));
  if (fits)
    fits = fail(ErrorCode::kOutOfMemory, "its buffers in host memory take what is left", "offload fewer layers");
  return tl::unexpected<Error>(
      std::move(fits.error())
          .during(ranks == 1 ? fmt::format("stage {}", programs.programs[largest].rank_class.pp)
                             : fmt::format("stage {} of {} ranks that need {} of this host, which has {} left",
                                           programs.programs[largest].rank_class.pp, ranks,
                                           format_bytes(static_cast<double>(together)),
                                           format_bytes(static_cast<double>(host_bytes)))));
}

Result<TrainResult> train(const Layout& layout, const StepPrograms& programs, const SampleSource& data,
                          const TrainOptions& options) {
  MB_TRY(check_memory(layout, programs));
  MB_CHECK(layout.has_sequences() == (options.sequences != nullptr), "rows of sequences come with packing.sequences");
  MB_TRY(check_replay(layout, options.replay));
  const int ranks = layout.mesh.world_size();
  Shared shared;
  shared.captured.resize(static_cast<size_t>(ranks));
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
  if (!trained && shared.capturing) static_cast<void>(profiler::end_capture());
  MB_TRY(trained);
  return std::move(shared.result);
}

}  // namespace mbb::trainer
