// Runs cells: each in child processes of its own, judged, written to a bundle and to the store, one cell at a time.
//
// A cell is finished when its checksums are in the bundle; whatever is killed, at most the running cell is lost, and
// resume_run() goes on from there. The bundle comes first: a store that cannot be written is a warning, and
// `mbbench index` rebuilds it.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "suites/matrix/settings.h"
#include "suites/matrix/suite.h"
#include "suites/runner/projection.h"

namespace mbb::suites {

struct RunOptions {
  std::string command;             // "suite" or "run"
  std::vector<std::string> argv;   // of this process, for the record
  std::filesystem::path runs_dir;  // bundles and store lie here
  std::string tag;
  int launches = 1;  // fresh processes a cell
  // A launch of the built-in trainer ends once it has timed so many steady steps, or once the 95 % interval of their
  // median is within so many percent of it; 0 and 0: at train_iters.
  int64_t steady_steps = 0;
  double interval_pct = 0;
  double gpu_interval_pct = 0;  // the same of launches on GPUs alone, where neither is given
  // All cells' first launches, then all second ones, in turning order, so that a slow drift of the machine falls on all
  // alike. A kill then loses every cell that is not finished.
  bool interleave = false;
  // With `interleave`: asked before each round of launches after the first, with how many are over; false ends them.
  std::function<bool(int)> next_round = {};
  std::string program;                         // that runs the launches; empty: this one
  profiler::FactRoles roles = fact_roles({});  // what is product and what environment: the run's epoch
  std::vector<profiler::HostFact> facts;       // declared by the user
  bool require_measured = false;               // cells that nothing can measure are skipped
  bool allow_clock_changes = false;            // the user agreed to host.vboost
  bool quiet = false;                          // no progress
  // Cells that ask for GPUs which are not here are projected by this on `hardware` (a key of trainer::all_hardware();
  // empty: as the suite says, else h100-sxm), or skipped without it.
  CellProjector project = {};
  std::string hardware = {};
  bool twins = true;                        // cells that ask for GPUs train their twin on CPU ranks
  const std::atomic<bool>* stop = nullptr;  // finishes nothing more; the running cell is lost
};

struct RunOutcome {
  baselines::Run run;  // with every finished cell, in planned order
  std::filesystem::path bundle;
  bool stopped = false;            // by `stop`: resumable
  ProjectionBasis basis;           // of projected rows
  std::vector<std::string> notes;  // knobs that were given and do nothing: idle_notes()
};

// What a finished run must hold and does not: planned cells without a result, ok cells without a step time. One line
// each; empty when all is there.
std::vector<std::string> missing_results(const baselines::Run& run);

// Where a suite's cells are projected: a key of trainer::all_hardware().
std::string hardware_of(const Suite& suite, const RunOptions& options);

// The record of every cell before it runs: class, work, memory plan, and why it would be skipped.
std::vector<baselines::Cell> describe_cells(const Suite& suite, const RunOptions& options);

// What a new run's fingerprint and epoch will be.
Result<profiler::RoledFacts> facts_here(const RunOptions& options);

// A new run of `suite`'s cells.
Result<RunOutcome> start_run(const Suite& suite, const RunOptions& options);

// Goes on with the run in `bundle`: finished cells stay, the rest of `suite`'s cells run.
Result<RunOutcome> resume_run(const std::filesystem::path& bundle, const Suite& suite, const RunOptions& options);

// What a process that an MPI launcher started does where it is not rank 0, whose process has the run: its rank of the
// configuration, and then it stays until rank 0's is done. Its exit status; rank 0's is the run's.
Result<int> follow_run(const trainer::Config& config, const RunOptions& options);

// Where the store of a runs folder is.
std::filesystem::path store_file(const std::filesystem::path& runs_dir);

// Exit status of a finished run (DESIGN.md, Trouble): 0, 4 with a broken cell, a missing result or nothing measured (of
// `run`: nothing run), 75 when stopped.
int exit_status(const RunOutcome& outcome, bool require_measured);

}  // namespace mbb::suites
