// What a run leaves behind, as plain structs: run, cell, launch, step, and the tables that hang on them.
//
// A run is one invocation of a command; a cell is one resolved configuration; a launch is one fresh child process tree;
// evidence counts launches. Times are integer nanoseconds, sizes are bytes, both int64. Bundles and the store read and
// write these and nothing else. Fields are only ever added.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"

namespace mbb::baselines {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Result classes never mix: series, baselines and gates stay inside one.
enum class ResultClass {
  kMeasured,       // every rank real
  kGhost,          // one rank real, its peers emulated
  kProjected,      // simulated
  kFunctionalCpu,  // right numerics; its time says nothing about a GPU
};

enum class CellStatus {
  kOk,
  kSkipped,   // not possible here, `reason` says why
  kBroken,    // wrong result, crash, or no answer: `reason` says which; its numbers are not kept
  kUnstable,  // ran, but its launches do not agree
};

enum class Verdict { kSlower, kSame, kFaster, kNew, kInconclusive, kUnstable, kIncomparable, kBroken };

// Stable lower-case names, as stored and printed: "functional/cpu", "ok", "slower".
const char* name(ResultClass value);
const char* name(CellStatus value);
const char* name(Verdict value);
Result<ResultClass> parse_result_class(std::string_view text);
Result<CellStatus> parse_cell_status(std::string_view text);
Result<Verdict> parse_verdict(std::string_view text);

// One resolved knob. `source` names the layer that set it ("default", "suite", "user", "project", "environment",
// "command line"); `file` and `line` are where, when it came from a file. `identity`: its value splits a series.
struct KnobValue {
  std::string key;
  std::string value;
  std::string source;
  std::string file;
  int line = 0;
  bool identity = true;
};

// What one step computes. FLOPs are model FLOPs of forward and backward, counted once with causal attention and once
// with full attention, by the named formula.
struct Work {
  std::int64_t tokens_per_step = 0;
  double flops_per_token_causal = 0;
  double flops_per_token_full = 0;
  std::string formula;  // id of the formula, e.g. "dense-transformer"
  int formula_version = 0;
};

enum StepFlag : std::uint32_t {
  kStepWarmUp = 1U << 0U,        // before the steady state: not part of any metric
  kStepProfiled = 1U << 1U,      // traced, so never timed
  kStepNonFinite = 1U << 2U,     // a gradient was not finite; the update was skipped
  kStepHostWork = 1U << 3U,      // periodic host work (log flush, trace drain) fell into it
  kStepOptimizerLate = 1U << 4U  // its optimizer ran under the next step's forward
};

// One step, over all ranks of a launch: the slowest rank's time.
struct Step {
  std::int64_t index = 0;
  std::int64_t wall_ns = 0;
  std::int64_t cpu_ns = 0;       // CPU time of all ranks' threads; 0 when not recorded
  std::int64_t modelled_ns = 0;  // replayed through the dependency graph (CPU ranks share cores); 0 when not modelled
  double loss = kNotMeasured;
  double grad_norm = kNotMeasured;
  double learning_rate = kNotMeasured;
  std::int64_t tokens = 0;
  std::int64_t sequence_squares = 0;  // sum of squared sequence lengths of a packed batch; 0 when not packed
  std::uint32_t flags = 0;            // StepFlag
  // Beside `loss`, where the model has them: routers' balancing and z-losses, the loss of multi-token prediction.
  double balance_loss = kNotMeasured;
  double z_loss = kNotMeasured;
  double mtp_loss = kNotMeasured;
  std::int64_t reference_ns = 0;  // CPU time of fixed work beside the step, of all ranks' threads; 0: none was done
};

// One metric of a cell. NaN bounds: no interval. `interval` says what the bounds cover.
struct Metric {
  std::string name;
  double value = kNotMeasured;
  double low = kNotMeasured;
  double high = kNotMeasured;
  std::string unit;
  int launches = 0;
  std::string interval;
};

// Time and work of one op path, summed over the measured steps of a launch, for one rank class.
struct OpRow {
  std::string path;        // "layers.3.mlp.fc1.fwd"
  std::string kind;        // op kind: "gemm"
  std::string role;        // "fprop", "dgrad", "wgrad" or empty
  std::string phase;       // "forward", "backward", "optimizer", ...
  std::string stream;      // "compute", "tp", ...
  std::string rank_class;  // "stage0"
  std::int64_t calls = 0;
  std::int64_t total_ns = 0;
  double flops = 0;
  std::int64_t bytes = 0;
};

// Bytes of one memory category. -1: not known.
struct CategoryBytes {
  std::string category;  // "weights", "main grads", "activations", ...
  std::int64_t planned_bytes = -1;
  std::int64_t measured_bytes = -1;
};

// One tensor in memory and its traced lifetime, [from, to) in the unit of the map's curve.
struct TensorBytes {
  std::string path;
  std::string category;
  std::int64_t offset = -1;  // in the arena; -1 when it has none
  std::int64_t bytes = 0;
  std::string first_writer;  // op path
  std::string last_reader;   // op path
  std::int64_t from = 0;
  std::int64_t to = 0;
};

struct MemorySample {
  std::int64_t at = 0;
  std::string category;
  std::int64_t bytes = 0;
};

// Memory of one rank class over a step. `unit` of the time axis: "op" (position in the walk) or "ns".
struct MemoryMap {
  std::string rank_class;
  std::string unit = "op";
  std::int64_t peak_bytes = 0;
  std::int64_t capacity_bytes = 0;  // of the device; 0 when unlimited or not known
  std::vector<CategoryBytes> categories;
  std::vector<TensorBytes> live_at_peak;
  std::vector<TensorBytes> tensors;  // every tensor, when the history was recorded
  std::vector<MemorySample> curve;
};

// Something counted that must not pass in silence: dropped records, non-finite steps, unattributed kernels.
struct NamedCount {
  std::string name;
  std::int64_t count = 0;
};

// One fresh process tree that ran the cell.
struct Launch {
  int index = 0;
  std::int64_t seed = 0;
  std::int64_t started_unix_ns = 0;
  std::int64_t ended_unix_ns = 0;
  int exit_status = 0;  // of the child process
  int signal = 0;       // that ended it; 0 for none
  std::string reason;   // why it failed, empty when it did not
  std::string loss_checksum;
  std::vector<Step> steps;
  std::vector<OpRow> ops;
  std::vector<MemoryMap> memory;  // as seen; the plan stands in the cell
  std::vector<NamedCount> counts;
  std::vector<std::string> trace_files;  // relative to the launch's folder
};

// A judgement on the cell: of a metric against a baseline, or of "loss" against the one-rank cell.
struct VerdictRow {
  std::string subject;  // metric name, or "loss"
  Verdict verdict = Verdict::kInconclusive;
  std::string against;           // run, baseline or cell it was compared with
  double change = kNotMeasured;  // relative, positive is larger
  double low = kNotMeasured;
  double high = kNotMeasured;
  std::string text;  // one sentence for a person
};

struct Cell {
  std::string run;   // id of its run
  std::string name;  // unique in the run; letters, digits and ". _ - + =" only, since it names a folder
  int index = 0;     // place in the run's order
  ResultClass result_class = ResultClass::kFunctionalCpu;
  std::string device;          // "cpu", "NVIDIA H100 80GB HBM3"
  int devices = 0;             // how many of them were real
  bool numerics_only = false;  // a recipe the device lacks, emulated: never in a performance series
  CellStatus status = CellStatus::kOk;
  std::string reason;
  std::string model;     // "llama-quickstart"
  std::string proxy_of;  // full model, when this one has fewer layers
  int gpus = 0;          // that the configuration asks for
  int ranks = 1;
  std::vector<KnobValue> knobs;
  Work work;
  std::string data_hash;      // of the data it trains on, as it was before the launches; empty where it reads none
  std::string identity_hash;  // of what splits a series; see identity_hash()
  std::string program_hash;   // of the step program
  std::string program_json;   // each rank class's explain output, JSON text; may be empty
  std::string published;      // what the suite quotes for this cell
  std::string loss_checksum;  // of the first good launch
  std::vector<Metric> metrics;
  std::vector<VerdictRow> verdicts;
  std::vector<MemoryMap> memory;  // the plan
  std::vector<Launch> launches;
};

struct Run {
  std::string id;         // "r-20261128-0001-3f9c", see new_run_id()
  std::string command;    // "suite", "run", "ab", ...
  std::string suite;      // name or file
  std::string spec;       // the suite's TOML text, so that a bundle can be resumed and replayed alone
  std::string tag;        // what "@tag" finds; may be empty
  std::string synthetic;  // not empty: made up for a test or a demonstration, and why; shown wherever the run is shown
  std::int64_t created_unix_ns = 0;
  std::int64_t ended_unix_ns = 0;  // 0: still running, or killed
  int exit_status = 0;
  std::vector<profiler::CapturedValue> argv;
  std::vector<profiler::CapturedValue> environment;
  profiler::Fingerprint fingerprint;
  std::string epoch;                       // a stretch without change of environment; may be empty
  std::vector<std::string> planned_cells;  // the names a finished run must have, in order
  std::vector<Cell> cells;                 // finished ones
};

// "measured/NVIDIA H100 80GB HBM3×8", "ghost", "projected", "functional/cpu"; with "+numerics-only" where it applies.
std::string class_label(const Cell& cell);

// The class, device, devices and numerics_only that a class label names, set in `cell`; false for any other text.
bool take_class_label(std::string_view label, Cell& cell);

// 16 hexadecimal digits over model, class, devices, data and the knobs that split a series, independent of knob order.
std::string identity_hash(const Cell& cell);

// 16 hexadecimal digits over the step program and every knob, whether it splits a series or not: two launches of one
// build with equal configurations do the same work.
std::string configuration_hash(const Cell& cell);

// Hash of the bit patterns of all losses in step order: equal runs have equal checksums.
std::string loss_checksum(const std::vector<Step>& steps);

// "r-YYYYMMDD-HHMM-xxxx": UTC time to the minute and four hexadecimal digits of `nonce`.
std::string new_run_id(std::int64_t created_unix_ns, std::uint64_t nonce);
// A nonce of this process and moment.
std::uint64_t fresh_nonce();

// A name that may be a folder on every file system: 1 to 120 of letters, digits, ". _ - + =", not starting with a dot.
Status check_cell_name(std::string_view cell_name);

}  // namespace mbb::baselines
