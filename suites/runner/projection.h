// What a runner needs of a projection: a cell's metrics on GPUs that are not here. The engine is passed in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

struct ProjectionRequest {
  const trainer::Layout& layout;
  const trainer::StepPrograms& programs;
  std::string hardware;  // a key of trainer::all_hardware()
  bool blocks = false;   // the time of the Transformer blocks too (block_time)
};

// What projected rows rest on.
struct ProjectionBasis {
  std::vector<std::string> lines;  // the costs, and whose error is how large; empty before any row
  // Ratios of two rows nearer to 1 than this say nothing, relative (80 %). 0: unknown, the rows' own intervals count.
  double ratio_error = 0;
};

// Fills the cell's metrics: step_time with its interval, throughput, exposed communication, bubble; and the basis.
// kUnavailable when the engine knows nothing of the hardware or the recipe.
using CellProjector =
    std::function<Status(const ProjectionRequest& request, baselines::Cell& cell, ProjectionBasis& basis)>;

}  // namespace mbb::suites
