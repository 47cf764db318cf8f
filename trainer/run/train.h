// Trains one resolved configuration, ranks being threads of this process or the processes of a launcher, and
// reports every step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/capture/device_trace.h"
#include "profiler/trace/align_ranks.h"
#include "profiler/trace/trace.h"
#include "trainer/comm/communicator.h"
#include "trainer/data/packing.h"
#include "trainer/execute/executor.h"
#include "trainer/program/program.h"
#include "trainer/run/gradient_parts.h"
#include "trainer/run/layout.h"
#include "trainer/run/routing_table.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

struct StepReport {
  int64_t index = 0;         // from 0
  int64_t wall_ns = 0;       // last rank's end minus first rank's start
  int64_t cpu_ns = 0;        // thread CPU time of all ranks
  int64_t reference_ns = 0;  // of the work that never changes, all ranks; 0 without profiling.reference_work
  int64_t modelled_ns =
      0;  // CPU times replayed, as if every rank had a core of its own; 0 when the step was not traced
  // On a GPU: rank 0's device time of the step, and until its optimizer begins; 0 on the CPU.
  int64_t device_ns = 0;
  int64_t device_forward_backward_ns = 0;
  double loss = 0;  // nats per token over the global batch
  // Nats per token beside `loss`: routers' balancing and z-losses with their coefficients, summed over layers; the mean
  // loss of multi-token prediction. Nothing where the model has none.
  std::optional<double> balance_loss;
  std::optional<double> z_loss;
  std::optional<double> mtp_loss;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;    // with a label
  int64_t squares = 0;   // sum over sequences of length², which attention's work follows
  double imbalance = 1;  // squares of the data-parallel rank with most over the mean
  bool found_inf = false;
};

struct TrainResult {
  std::vector<StepReport> steps;
  std::vector<profiler::Trace> traces;                   // one a traced step, from the replay
  std::vector<std::vector<std::vector<int64_t>>> op_ns;  // [traced step][rank][walk position]; with `traces`
  std::optional<profiler::DeviceTrace> captured;         // of GPU ranks, instead of `traces`, where capture works
  profiler::Alignment alignment;                         // of `captured`, where its ranks are processes
  std::vector<OutsideBytes> outside;                     // of rank 0, after its last step
  std::vector<std::string> bindings;  // by rank: CPUs in force, as the kernel says, and their NUMA nodes
  std::vector<std::string> notes;     // of rank 0's device: what it did not take, and what ran instead
  std::string capture_note;           // why a GPU's window was not captured, or was traced op by op; empty when it was
  std::vector<std::array<CommStats, 32>> comm;  // by rank and GroupKind, over all steps
};

// Fills Layout::sample_tokens() tokens of the sample with this global index; called from every rank's thread.
using SampleSource = std::function<Status(int64_t sample, std::span<int32_t> tokens)>;

struct TrainOptions {
  // Steps [trace_first, trace_end) are traced: on the CPU timed op by op and replayed; on GPUs captured, or timed op by
  // op where `capture` is off or no tracing library can be had.
  int64_t trace_first = 0;
  int64_t trace_end = 0;
  int64_t trace_period = 0;  // above 0: the window comes again every so many steps; `captured` is the last one's
  bool capture = true;
  bool external_profiler = false;  // only bracket the steps for nsys
  // From rank 0's thread, for each step in order, when host work is due (host.manual_gc_interval).
  std::function<void(const StepReport&)> on_step;
  // From every rank's thread, behind on_step: host work is due after this step, on all ranks. Unless the interval is 0
  // no rank begins another step before all are done with it.
  std::function<void(int rank, int64_t step)> on_host_work = {};
  // From rank 0's thread, before on_step: true when this step was enough; the run ends with the steps that are reported
  // now, before train_iters. The schedule of the learning rate stays train_iters'.
  std::function<bool(const StepReport&)> enough = {};
  // From rank 0's thread after each step, for every rank: what its optimizer reads of each weight's gradient (of the
  // summed loss), local elements [first, first + size). Together the ranks give every element of every weight.
  GradientSink on_gradient = {};
  // Choices that routers take where Layout::replays_routing, and where they go where it records them (rank 0's
  // process).
  const RoutingTable* replay = nullptr;
  RoutingTable* record = nullptr;
  // The rows of a layout that has_sequences(); `data` is not asked then. Must outlive the call.
  const SequenceDataset* sequences = nullptr;
  const std::atomic<bool>* stop = nullptr;  // checked between steps; ends with kCancelled
  int64_t no_progress_ms = 120'000;         // 0: as trainer/comm/patience.h has it
  // A rank that is still running so long after another failed is stuck: on_stuck may end the process.
  int64_t stuck_grace_ms = 3'000;
  std::function<void(const Error&)> on_stuck = {};
  std::string places_file;  // where all ranks stand, readable when this process is killed (trainer/comm/places.h)
  // Ranks are the processes of a launcher (process_place()), and this is one of them.
  bool processes = false;
  std::function<Status()> meanwhile = {};  // asked by rank 0 while processes meet; an error ends the wait
  std::function<void()> on_joined = {};    // from this process's ranks, once the world stands
};

// With `processes` the result is rank 0's; the other processes get an empty one. Errors: kOutOfMemory before anything
// runs when a plan is above memory.limit_gib; the first rank's that failed; kNumerics when the loss is not finite,
// naming step, and with debug.nan_trace the op that made the first such value, its rank and micro-batch; kCancelled on
// stop; kMismatch when the processes of a launcher have different configurations.
Result<TrainResult> train(const Layout& layout, const StepPrograms& programs, const SampleSource& data,
                          const TrainOptions& options = {});

}  // namespace mbb::trainer
