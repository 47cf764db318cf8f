// Metrics that follow from a cell's configuration, beside those that were measured or projected.
#pragma once

#include "baselines/store/records.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

// FP8-eligible FLOPs, HFU from recompute's FLOPs, the rows' efficiency.
Status add_planned_metrics(const trainer::Layout& layout, const trainer::StepPrograms& programs, baselines::Cell& cell);

}  // namespace mbb::suites
