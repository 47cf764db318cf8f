// What a cell's memory plan says in metrics, without a run.
#pragma once

#include "baselines/store/records.h"

namespace mbb::analysis {

// Adds the planned activations (activation_memory), and the planned peak (peak_memory) where none was seen.
void add_planned_memory(baselines::Cell& cell);

}  // namespace mbb::analysis
