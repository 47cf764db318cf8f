// What differs between two step programs, op by op: ops that came, ops that went, and those whose work changed.
#pragma once

#include <string>
#include <vector>

#include "analysis/report/table.h"
#include "profiler/base/error.h"

namespace mbb::analysis {

// All ops of one grouped path ("layers.*.mlp.fc1.fwd") over a step and all GPUs. FLOPs and bytes are sums over all
// runs; a mapping that only spreads an op leaves its FLOPs as they are.
struct ProgramOp {
  std::string kind;
  std::string streams;  // "compute", "compute, tp"
  double runs = 0;
  double flops = 0;
  double bytes = 0;       // read and written
  double wire_bytes = 0;  // sent
};

struct OpDifference {
  std::string path;
  bool in_old = false;
  bool in_new = false;
  ProgramOp before;
  ProgramOp after;
};

struct ProgramDiff {
  std::vector<OpDifference> ops;  // those that differ: new and gone ones first, then by the change of bytes
  size_t equal = 0;               // paths that do not
};

// Of two program.json texts as a cell stores them. kBadFile for a text that is none.
Result<ProgramDiff> program_diff(const std::string& before, const std::string& after);

// At most `rows` rows; the footer counts what is left out and what is equal.
Table program_table(const ProgramDiff& diff, const std::string& cell, size_t rows = 24);

}  // namespace mbb::analysis
