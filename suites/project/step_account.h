// Where the time of a measured step of one GPU went: each op's best time alone against what the card can do.
//
// An op's ceiling is FLOPs over the measured rate of that product or attention shape, or bytes over device copy
// bandwidth, whichever takes longer; nothing is fitted. What a step takes beyond its ops is launch gaps, or below 0
// what ran side by side.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/execute/simulate/cost_table.h"
#include "trainer/program/program.h"

namespace mbb::suites {

struct AccountRow {
  std::string name;
  int count = 0;
  double ms = 0;          // best time alone, summed
  double ceiling_ms = 0;  // what the card could do
  double flops = 0, bytes = 0;
  double lost_ms() const { return ms - ceiling_ms; }
};

struct StepAccount {
  double step_ms = 0;             // as it runs, not op by op
  std::vector<AccountRow> parts;  // by cost term that occurs, in the terms' order: gemm, ..., memory
  std::vector<AccountRow> kinds;  // by cost key of products, by op kind of others; most time first
  // routing (logits, choice, losses, plans), permutation (permute, combine, gradients), grouped_gemm, optimizer: those
  // that occur. They lie across parts, which they repeat.
  std::vector<AccountRow> groups;
  double ops_ms() const;
  double ceiling_ms() const;
  double between_ops_ms() const { return step_ms - ops_ms(); }
  double step_efficiency() const { return ops_ms() / step_ms; }
  double floor_ratio() const { return ceiling_ms() / step_ms; }
  double forward_backward_ceiling_ms() const;  // without the optimizer
};

// op_ns: of one step in walk order, each the best of the steps that were timed op by op. Programs of one rank only
// (kBadArgument otherwise, or when the times are not those of the walk).
Result<StepAccount> account_step(const trainer::CostTable& table, const trainer::Program& program,
                                 std::span<const int64_t> op_ns, double step_ms);

// A table of lines that end in a newline: parts, groups, the `most` kinds that take longest, and the sums.
std::string format(const StepAccount& account, size_t most);

}  // namespace mbb::suites
