// Two runs side by side: cells with differences and intervals, knobs and host facts that differ, and per-op
// differences that sum to the difference of the step.
#pragma once

#include <string>
#include <vector>

#include "analysis/report/table.h"
#include "analysis/stats/stats.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// A pair of cells of the two runs. One side may be missing.
struct CellPair {
  const baselines::Cell* before = nullptr;
  const baselines::Cell* after = nullptr;
  std::string incomparable;  // why their times must not be set against each other; empty when they may
};

struct ChangedFact {
  std::string what;  // "knob parallel.tp", "host gpu.driver", "environment NCCL_ALGO", "work tokens per step"
  std::string cell;  // empty: of the run
  std::string before;
  std::string after;
};

// One line of the per-op account, in ns per step.
struct OpChange {
  std::string path;  // with layer numbers replaced by '*'
  double before_ns = 0;
  double after_ns = 0;
  // 95 % interval of the change, over launches (Welch); NaN with fewer than two on a side.
  double low_ns = baselines::kNotMeasured;
  double high_ns = baselines::kNotMeasured;
  double change_ns() const { return after_ns - before_ns; }
};

// Cells of equal names; where each run has one cell they are a pair whatever they are called. The pointers stay valid
// as long as the runs do.
std::vector<CellPair> pair_cells(const baselines::Run& before, const baselines::Run& after);

// The difference of step times over launches; without two launches on each side there is no interval.
Difference step_difference(const baselines::Cell& before, const baselines::Cell& after);

std::vector<ChangedFact> changed_facts(const baselines::Run& before, const baselines::Run& after);

// Largest change first; the last entry, "not attributed", makes the changes sum to that of the step (of the modelled
// step where both have one, as CPU runs do). Means over the launches that traced steps. Ranks: the class with the
// longest ops in both. Empty without op rows.
std::vector<OpChange> op_changes(const baselines::Cell& before, const baselines::Cell& after);

// What those sum to: the change of the step over the same launches, with its own interval.
OpChange step_account(const baselines::Cell& before, const baselines::Cell& after);

// Where some pair's work is unequal (tokens, FLOPs a token, model, GPUs) the table leads with tokens/s/GPU and its
// footer says what differs. It says so, too, where the data differ, whose hashes the facts show.
Table compare_table(const baselines::Run& before, const baselines::Run& after);
Table facts_table(const baselines::Run& before, const baselines::Run& after);
// At most `rows` ops; the rest is one row "other ops". Then the sum. Of two projected cells the parts of the step:
// exposed communication by kind, copies, bubble, and the rest. Without rows the footer says what was missing.
Table ops_table(const baselines::Cell& before, const baselines::Cell& after, size_t rows = 12);
// Every declared metric that either cell has, in the order of the declarations.
Table metrics_table(const baselines::Cell& before, const baselines::Cell& after);

}  // namespace mbb::analysis
