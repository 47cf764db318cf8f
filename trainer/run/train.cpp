// The training loop of CPU ranks: batches by global sample index, the step record from the schedule, reports from rank
// 0.
#include "trainer/run/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "profiler/capture/capture.h"
#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/executor.h"
#include "trainer/execute/op_sites.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/models/transformer.h"
#include "trainer/ops/op_kind.h"
#include "trainer/optim/schedule.h"
#include "trainer/passes/precision.h"
#include "trainer/program/packed_rows.h"
#include "trainer/program/verify.h"
#include "trainer/run/cpu_binding.h"

namespace mbb::trainer {
namespace {

// Where the samples of a micro-batch come from and go to.
struct BatchReader {
  const Layout& layout;
  const SampleSource& data;
  const SequenceDataset* sequences;
  int64_t step;
  int dp_rank;
  Positions positions;  // of this context-parallel rank

  // Samples of micro-batch m on data-parallel rank d are [(m·dp + d)·b, ... + b) of the step's global batch.
  int64_t index(int micro_batch, size_t i) const {
    return step * layout.global_batch + (int64_t{micro_batch} * layout.dp + dp_rank) * layout.micro_batch +
           static_cast<int64_t>(i);
  }

  // A sample is the encoder's tokens (if there is one), then the decoder's, then one label more. Of the decoder's a
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
    std::vector<int32_t> first(layout.packed() ? static_cast<size_t>(layout.sequences_of_row()) + 1 : 0);
    for (size_t i = 0; i < b; ++i) {
      MB_TRY(sequences->row(index(micro_batch, i), row_tokens, row_labels, first));
      std::vector<PackedRow> mine;
      if (layout.packed()) mine = packed_rows(positions, first, layout.local_sequence());
      for (size_t s = 0; s < static_cast<size_t>(layout.local_sequence()); ++s) {
        const auto at = static_cast<size_t>(mine.empty() ? positions.at(static_cast<int64_t>(s)) : mine[s].at);
        if (!tokens.empty()) tokens[s * b + i] = row_tokens[at];
        if (!labels.empty()) labels[s * b + i] = row_labels[at];
      }
    }
    return {};
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
      if (sequences != nullptr)
        MB_TRY(sequences->encoder_row(index(micro_batch, i), std::span(sample).first(encoder_tokens.size() / b), {}));
      else
        MB_TRY(data(index(micro_batch, i), sample));
      for (size_t s = 0; s < static_cast<size_t>(layout.encoder_sequence); ++s) encoder_tokens[s * b + i] = sample[s];
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

// What the rank threads hand to rank 0 between two barriers; `tracing` goes from rank 0 to all.
struct Shared {
  Tracing tracing = Tracing::kOff;
  std::vector<profiler::CapturedRank> captured;
  std::vector<int64_t> start_ns, end_ns, cpu_ns;
  std::vector<std::vector<int64_t>> op_ns;
  std::vector<std::optional<NotFinite>> culprits;
  TrainResult result;
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
    shared_.result.bindings[rank_] = binding_in_force();
    MB_ASSIGN(everyone_, world_.group(GroupKind::kWorld, l_.mesh));
    for (int64_t step = 0; step < l_.config.train.train_iters; ++step) {
      const bool was = step > 0 && in_window(step - 1), is = in_window(step);
      if (was && !is) MB_TRY(end_window(*rank));
      if (is && !was) MB_TRY(begin_window(*rank));
      MB_TRY(one_step(*rank, step));
    }
    if (in_window(l_.config.train.train_iters - 1)) MB_TRY(end_window(*rank));
    for (size_t kind = 0; kind < kGroupKinds.size(); ++kind)
      shared_.result.comm[rank_][kind] = rank->stats(static_cast<GroupKind>(kind));
    if (rank_ == 0) shared_.result.outside = rank->outside_arena();
    return {};
  }

 private:
  bool in_window(int64_t step) const {
    if (step < options_.trace_first || options_.trace_first >= options_.trace_end) return false;
    const int64_t since = step - options_.trace_first, length = options_.trace_end - options_.trace_first;
    return (options_.trace_period > 0 ? since % options_.trace_period : since) < length;
  }

  // Rank 0 decides and attaches while all others wait.
  Status begin_window(Executor& rank) {
    MB_TRY(everyone_->barrier());
    if (rank_ == 0) MB_TRY(choose_tracing(rank));
    MB_TRY(everyone_->barrier());
    if (shared_.tracing != Tracing::kCapture) return {};
    profiler::CapturedRank& mine = shared_.captured[rank_];
    mine.rank = world_.rank();
    mine.device = rank.device();
    mine.steps.clear();
    mine.sites = op_sites(programs_.of_rank(l_.mesh, world_.rank()), l_.mesh, world_.rank());
    return rank.capture_changed();
  }

  Status choose_tracing(const Executor& rank) {
    shared_.tracing = Tracing::kOpByOp;
    if (rank.device() < 0) return {};
    if (options_.external_profiler) {
      shared_.tracing = Tracing::kExternal;
      shared_.result.capture_note = "the window was left to an external profiler";
      return profiler::profiler_range(true);
    }
    if (!options_.capture) return {};
    const Status begun = profiler::begin_capture();
    if (begun)
      shared_.tracing = Tracing::kCapture;
    else
      shared_.result.capture_note = "timed op by op: " + begun.error().what;
    return {};
  }

  Status end_window(Executor& rank) {
    MB_TRY(everyone_->barrier());
    const Tracing was = shared_.tracing;
    MB_TRY(everyone_->barrier());
    if (rank_ == 0) MB_TRY(finish_tracing());
    MB_TRY(everyone_->barrier());
    return was == Tracing::kCapture ? rank.capture_changed() : Status{};
  }

  Status finish_tracing() {
    const Tracing was = std::exchange(shared_.tracing, Tracing::kOff);
    if (was == Tracing::kExternal) return profiler::profiler_range(false);
    if (was != Tracing::kCapture) return {};
    MB_ASSIGN(const profiler::CaptureRecords records, profiler::end_capture());
    shared_.result.captured = profiler::device_trace(records, shared_.captured);
    return {};
  }

  Status one_step(Executor& rank, int64_t step) {
    const OptimizerConfig& o = l_.config.optimizer;
    const bool op_by_op = shared_.tracing == Tracing::kOpByOp;
    const double rate = learning_rate(o, l_.config.train.train_iters, step);
    StepInput input;
    input.record = record_of(o, rate, step);
    const MeshCoordinates at = l_.mesh.coordinates(world_.rank());
    const BatchReader reader{l_, data_, options_.sequences, step, at.dp, l_.positions(at.cp)};
    input.batch = [&](int m, std::span<int32_t> tokens, std::span<int32_t> labels) {
      return reader.tokens_and_labels(m, tokens, labels);
    };
    input.extra = [&](int m, std::span<int32_t> samples, std::span<int32_t> encoder_tokens) {
      return reader.samples_and_encoder(m, samples, encoder_tokens);
    };
    input.starts = [&](int m, std::span<int32_t> first) { return reader.starts(m, first); };
    input.encoder_starts = [&](int m, std::span<int32_t> first) { return reader.encoder_starts(m, first); };
    MB_TRY(everyone_->barrier());
    if (options_.stop && options_.stop->load())
      return fail(ErrorCode::kCancelled, fmt::format("stopped before step {}", step));
    const int64_t cpu_begin = thread_cpu_ns();
    shared_.start_ns[rank_] = monotonic_ns();
    MB_ASSIGN(const StepOutput output, rank.step(input, op_by_op ? &shared_.op_ns[rank_] : nullptr));
    shared_.end_ns[rank_] = monotonic_ns();
    if (shared_.tracing == Tracing::kCapture)
      shared_.captured[rank_].steps.push_back(
          {world_.rank(), static_cast<int32_t>(step), shared_.start_ns[rank_], shared_.end_ns[rank_]});
    shared_.cpu_ns[rank_] = thread_cpu_ns() - cpu_begin;
    if (options_.on_gradient) MB_TRY(hand_out_gradients(rank, step));
    if (output.found_inf || !std::isfinite(output.loss())) return not_finite(rank, input, output, step);
    MB_TRY(everyone_->barrier());
    return rank_ == 0 ? report(output, rank.device_times(), step, rate, op_by_op) : Status{};
  }

  // An optimizer op's shard of its bucket, cut into the weights it holds parts of.
  Status hand_out_gradients(Executor& rank, int64_t step) const {
    const Program& program = programs_.of_rank(l_.mesh, world_.rank());
    const MeshCoordinates at = l_.mesh.coordinates(world_.rank());
    std::map<std::string_view, const Tensor*> weights;
    for (const Tensor& t : program.tensors)
      if (t.main_grad != kNoTensor) weights[t.path] = &t;
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
          options_.on_gradient(
              at, step, *weights.at(range.path), from - range.offset,
              std::span(held).subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from)));
        }
      }
    }
    return {};
  }

  static Result<std::vector<float>> values_of(Executor& rank, const Program& program, TensorId id) {
    const Tensor& t = program.tensor(id);
    std::vector<float> values(static_cast<size_t>(t.shape.elements()));
    if (t.dtype == DType::kF32) {
      MB_TRY(rank.read(id, std::as_writable_bytes(std::span(values))));
      return values;
    }
    MB_CHECK(t.dtype == DType::kBf16, "gradients are f32 or bf16: " + t.path);
    std::vector<Bf16> narrow(values.size());
    MB_TRY(rank.read(id, std::as_writable_bytes(std::span(narrow))));
    std::transform(narrow.begin(), narrow.end(), values.begin(), [](Bf16 v) { return to_float(v); });
    return values;
  }

  // Every rank comes here on the same step: loss and norm are sums over all. The optimizer has changed nothing, so the
  // step runs again as it was. Collectives only hand on what is not finite: the culprit is an op of a rank's own.
  Status not_finite(Executor& rank, const StepInput& input, const StepOutput& output, int64_t step) {
    std::string what =
        fmt::format("step {}: loss {} and gradient norm {} are not both finite", step, output.loss(), output.grad_norm);
    if (!l_.config.debug.nan_trace)
      return fail(ErrorCode::kNumerics, what, "lower optimizer.lr; debug.nan_trace = true names the first op");
    MB_ASSIGN(shared_.culprits[rank_], rank.find_not_finite(input));
    MB_TRY(everyone_->barrier());
    const NotFinite* first = nullptr;
    size_t at = 0;
    for (size_t r = 0; r < shared_.culprits.size(); ++r) {
      const auto& found = shared_.culprits[r];
      if (found && (first == nullptr || (first->communicates && !found->communicates))) first = &*found, at = r;
    }
    if (first != nullptr)
      what += fmt::format("; the first such value is written by op {} ({}, rank {}, micro-batch {})", first->op,
                          first->tensor, at, first->micro_batch);
    return fail(ErrorCode::kNumerics, what, "lower optimizer.lr or raise the precision of that op's inputs");
  }

  // Others wait at the next barrier meanwhile, so their times can be read.
  Status report(const StepOutput& output, const DeviceTimes& device, int64_t step, double rate, bool op_by_op) {
    StepReport r;
    r.index = step;
    r.wall_ns = *std::max_element(shared_.end_ns.begin(), shared_.end_ns.end()) -
                *std::min_element(shared_.start_ns.begin(), shared_.start_ns.end());
    for (int64_t ns : shared_.cpu_ns) r.cpu_ns += ns;
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
    if (op_by_op) {
      MB_ASSIGN(Replay replayed, replay(l_.mesh, programs_.by_rank(l_.mesh), [&](int rank, size_t i) {
                  return shared_.op_ns[static_cast<size_t>(rank)][i];
                }));
      r.modelled_ns = replayed.step_ns;
      for (auto& window : replayed.trace.steps) window.step = static_cast<int32_t>(step);
      for (auto& span : replayed.trace.spans) span.step = static_cast<int32_t>(step);
      shared_.result.traces.push_back(std::move(replayed.trace));
      shared_.result.op_ns.push_back(shared_.op_ns);
    }
    shared_.result.steps.push_back(r);
    if (options_.on_step) options_.on_step(r);
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

Result<StepPrograms> build_programs(const Layout& layout) {
  StepPrograms built;
  for (int i = 0; i < layout.mesh.rank_class_count(); ++i)
    built.programs.push_back(
        build_program(layout, layout.mesh.rank_class(layout.mesh.representative(i)), &built.effects.emplace_back()));
  MB_TRY(check_frozen(layout, built));
  const PlanOptions options{layout.config.memory.expandable_segments, layout.config.memory.avoid_record_streams};
  for (const Program& program : built.programs) {
    MB_TRY(check_block_shapes(program));
    MB_TRY(verify(program));
    built.plans.push_back(plan_memory(program, options));
  }
  const std::vector<GroupKind> groups = groups_of_world(built.programs);
  for (Program& program : built.programs) program.groups = groups;
  return built;
}

Status check_memory(const Layout& layout, const StepPrograms& programs, int64_t capacity_bytes) {
  const auto limit = static_cast<int64_t>(layout.config.memory.limit_gib * 0x1p30);
  const int64_t capacity = limit == 0 || (capacity_bytes > 0 && capacity_bytes < limit) ? capacity_bytes : limit;
  if (capacity == 0) return {};
  for (size_t i = 0; i < programs.programs.size(); ++i)
    if (Status fits = check_fits(programs.programs[i], programs.plans[i], capacity); !fits)
      return tl::unexpected<Error>(
          std::move(fits.error()).during(fmt::format("stage {}", programs.programs[i].rank_class.pp)));
  return {};
}

Result<TrainResult> train(const Layout& layout, const StepPrograms& programs, const SampleSource& data,
                          const TrainOptions& options) {
  MB_TRY(check_memory(layout, programs));
  MB_CHECK(layout.has_sequences() == (options.sequences != nullptr), "rows of sequences come with packing.sequences");
  const int ranks = layout.mesh.world_size();
  Shared shared;
  shared.start_ns.resize(static_cast<size_t>(ranks));
  shared.end_ns.resize(static_cast<size_t>(ranks));
  shared.cpu_ns.resize(static_cast<size_t>(ranks));
  shared.op_ns.resize(static_cast<size_t>(ranks));
  shared.captured.resize(static_cast<size_t>(ranks));
  shared.culprits.resize(static_cast<size_t>(ranks));
  shared.result.comm.resize(static_cast<size_t>(ranks));
  shared.result.bindings.resize(static_cast<size_t>(ranks));
  LocalOptions local;
  local.no_progress_ms = options.no_progress_ms;
  const Status trained = run_ranks(
      ranks, [&](World& world) { return RankLoop(layout, programs, data, options, world, shared).run(); }, local);
  // A run that failed inside its window leaves the process as it found it.
  if (!trained && shared.tracing == Tracing::kCapture) static_cast<void>(profiler::end_capture());
  MB_TRY(trained);
  return std::move(shared.result);
}

}  // namespace mbb::trainer
