// What a step program is, without running it: FLOPs, bytes, communication, memory, and the ops, as values, as text for
// a person, like a query plan, and as JSON for machines.
//
// Everything follows from the ops, their records and the memory plan; the closed formulas of NUMERICS stand beside as
// checks. Counts are per GPU and step unless a name says otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/passes/effects.h"
#include "trainer/program/mesh.h"
#include "trainer/program/program.h"
#include "trainer/program/row_lengths.h"

namespace mbb::trainer {

struct Layout;        // trainer/run/layout.h
struct StepPrograms;  // trainer/run/train.h

inline constexpr int kRoles = 4;

// One op of a segment; FLOPs and bytes are of one execution.
struct OpRow {
  std::string path;
  std::string what;  // "gemm bf16 8192x2560x8192", "all_gather tp 16.8 MB"
  std::string_view kind;
  Role role = Role::kNone;
  When when = When::kAlways;
  Stream stream = Stream::kCompute;
  int64_t runs = 0;  // executions in a step
  double flops = 0;
  double bytes = 0;         // through device memory
  double wire_bytes = 0;    // what this GPU puts on the wire (communicator.h); 0 for a receive, whose sender counts it
  double useful_bytes = 0;  // of them, what is not padding at balanced load
  bool model_flops = false;
  bool recompute = false;  // a forward op run again
};

struct SegmentRow {
  std::string name;
  SegmentKind kind = SegmentKind::kForward;
  int chunk = 0;
  int64_t calls = 0;  // in a step
  std::vector<OpRow> ops;
};

// What one GPU moves in a step over one kind of group. A message counts at its sender.
struct CommRow {
  GroupKind group = GroupKind::kTp;
  int64_t calls = 0;
  double wire_bytes = 0;
  double useful_bytes = 0;   // of them, what is not padding at balanced load
  double largest_bytes = 0;  // wire bytes of the largest call
};

// A rank class: all GPUs that run one program.
struct ClassRow {
  RankClass rank_class;
  int64_t gpus = 0;
  int64_t arena_bytes = 0;  // allocated
  int64_t host_bytes = 0;   // pinned host memory beside it
  int64_t graph_ops = 0;    // ops that CUDA graphs hold, and what the driver takes for them beside the arena
  int64_t graph_bytes = 0;
  int64_t peak_live_bytes = 0;  // at the fullest moment; the rest of the arena is slack
  std::array<int64_t, kCategories> peak_by_category{};
  std::string peak_path;  // the op at the fullest moment
  std::array<double, kRoles> model_flops_by_role{};
  std::array<double, kSegmentKinds> flops_by_segment{};  // model and other FLOPs
  std::array<double, kSegmentKinds> bytes_by_segment{};
  double model_flops = 0;
  double recompute_flops = 0;  // of ops run again; hardware FLOPs are model FLOPs and these
  double eligible_flops = 0;   // model FLOPs of GEMMs that a recipe of fewer bits could take
  double quantized_flops = 0;  // and of those that this one does
  double flops = 0;
  double bytes = 0;
  std::vector<CommRow> comm;  // by GroupKind, those that are used
  std::vector<SegmentRow> segments;
  std::vector<PassEffect> passes;  // before and after, of a micro-batch

  int64_t slack_bytes() const { return arena_bytes - peak_live_bytes; }
};

struct Explain {
  std::string model;
  std::string recipe;         // "fp8_current"
  std::string compute_dtype;  // of weights and activations outside of quantized GEMMs
  std::string program_hash;
  std::vector<std::string> idle;  // knobs that were given and do nothing here, and what they need
  ParallelSizes sizes;
  bool sequence_parallel = false;
  bool exchanges_tokens = false;  // experts are cut otherwise than the rest of a layer
  int chunks = 1;                 // of the model a stage holds
  int64_t gpus = 1;
  int micro_batches = 1;
  int64_t micro_batch = 1;  // sequences
  int64_t sequence = 0;     // tokens
  int64_t tokens = 0;       // a step, padding included
  double label_tokens = 0;  // of them those with a label, on average over steps
  std::string convention;   // of model FLOPs: "causal"
  // Rows of the embedding table: the model's, by which parameters are counted, and padded, by which FLOPs are.
  int64_t vocabulary = 0;
  int64_t padded_vocabulary = 0;
  // Of a step over all GPUs: from the ops, which pad rows, and from the closed form, by the tokens with a label.
  double model_flops = 0;
  double recompute_flops = 0;
  double closed_form_flops = 0;
  double eligible_flops = 0;
  double quantized_flops = 0;
  double flops_per_token = 0;  // closed form, of a token with a label
  // Share of the step that the fullest stage spends waiting, with F = 1, B = 2 and free messages: the closed form
  // (NUMERICS, section 6) and the schedule replayed.
  double bubble_formula = 0;
  double bubble_replayed = 0;
  std::vector<ClassRow> classes;  // by Mesh::rank_class_index
};

// `rows`: of a layout whose rows hold sequences of many lengths (has_sequences()); without them rows count as whole
// sequences.
Explain explain(const Layout& layout, const StepPrograms& programs, const RowLengths* rows = nullptr);

// What to_text() shows after the summary: of one stage, its totals by phase and by kind, and its ops.
struct ExplainOptions {
  int stage = 0;
  std::string segment;         // list the ops of segments whose name holds this: "backward"; empty: of none
  bool ops = false;            // list the ops of every segment
  std::string path;            // list only ops whose path matches ('*' and '?'); empty: all
  int64_t capacity_bytes = 0;  // device memory, to say what fits; 0: unknown
};

// As a query plan: one screen of summary, then the ops asked for. Errors (kBadArgument): a stage or segment that is not
// there, or a path that no listed op matches; they say what is.
Result<std::string> to_text(const Explain& explained, const ExplainOptions& options = {});

// Of every buffer of a program: bytes, ring slots, scope, the op that writes it first in a step and the one that reads
// it last, in the order of first use. Uses through views count. `path` keeps tensors whose path matches ('*' and '?');
// an error (kBadArgument) when none does.
Result<std::string> lifetimes_text(const Program& program, const std::string& path = {});

// The same facts and every tensor, op and call, a class at a time. Tensors are named by index in the class's "tensors".
std::string explain_json(const Layout& layout, const StepPrograms& programs, const RowLengths* rows = nullptr);

// 16 hex digits over every op, attribute, tensor and the schedule of every class: equal programs have equal hashes, in
// any process.
std::string program_hash(const StepPrograms& programs);

// The step's length of a pipeline in units of one forward call, with a backward of two and free messages, from the
// schedules of `programs` alone (one a stage, in order), and each stage's waiting in it. A message takes
// `message_units` on its way.
struct UnitReplay {
  int64_t step_units = 0;
  std::vector<int64_t> idle_units;  // by stage
};
Result<UnitReplay> replay_units(const std::vector<const Program*>& stages, int64_t forward_units = 1,
                                int64_t backward_units = 2, int64_t message_units = 0);

}  // namespace mbb::trainer
