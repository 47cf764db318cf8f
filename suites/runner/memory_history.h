// Every tensor of a step with its traced lifetime, and what lies beside the arena: the launch's own memory record.
#pragma once

#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/trace/trace.h"
#include "trainer/execute/executor.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

// One map a rank class. A lifetime goes from the first writer's start to the last reader's end in the first traced step
// of the class's first rank in `trace` (unit "ns"), or in walk positions where no step was traced (unit "op"); no later
// than the next tensor in its bytes is written, which a device's clock may show a little too early. The
// category rows hold the plan's bytes at its peak beside the bytes alive at the traced peak. `outside`: allocations
// beside the arena, alive all the time. `trace` must be of what ran, on one clock: a modelled one (replayed CPU times)
// knows no reuse of buffers.
std::vector<baselines::MemoryMap> memory_history(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                                                 const profiler::Trace* trace,
                                                 const std::vector<trainer::OutsideBytes>& outside);

// How many values a step of the program has: a tensor of a call has one in each, of a micro-batch in each, of the step
// one.
int64_t count_values(const trainer::Program& program);

// The history of a plan in walk positions, with a coarser grain: of each call the curve has the fullest moment, and of
// each buffer `tensors` has the one value that is alive at position `at`, or comes nearest to it.
baselines::MemoryMap coarse_history(const trainer::Program& program, const trainer::MemoryPlan& plan, int64_t at);

// Where memory_snapshot_path puts the snapshot of a rank class: beside the others of the run when the path is relative
// (in `folder`), with the class before its ending when there are several.
std::string snapshot_file(const std::string& knob, const std::string& folder, const std::string& rank_class,
                          bool several);

}  // namespace mbb::suites
