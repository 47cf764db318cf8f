// What a suite would do here, before it does it: `mbbench suite NAME --dry-run`.
#pragma once

#include "analysis/report/table.h"
#include "suites/matrix/suite.h"
#include "suites/runner/runner.h"

namespace mbb::suites {

// A row a cell: GPUs, class it would have here, memory of the fullest rank, time of its steps and the GPU-hours that
// measuring it takes (its step as projected, or as the store remembers it, times train_iters and launches: more than it
// takes where a launch ends once its times are known well enough), what will be done or why not. The footer sums, and
// names combinations without a cell.
struct SuitePlan {
  analysis::Table table;
  int broken = 0;  // cells that would end so: the plan of a suite that cannot run is no success
};
Result<SuitePlan> plan_of_suite(const Suite& suite, const RunOptions& options);

}  // namespace mbb::suites
