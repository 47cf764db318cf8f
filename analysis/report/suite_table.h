// The answer of a suite: one row a cell, and a footer that says what the numbers rest on.
#pragma once

#include <string>
#include <vector>

#include "analysis/report/table.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// Columns: cell, status, class, step (with half the interval), tokens/s (where cells ask for GPUs: tokens/s/GPU,
// TFLOP/s and MFU), exposed comm, bubble, peak; the verdict on the cell's twin and published where a cell has one.
// Cells that are not ok show their reason instead of numbers. The footer counts statuses, names what the intervals
// cover, the launch sigma they rest on or "one launch: not evidence", and what each class says.
Table suite_table(const std::vector<baselines::Cell>& cells);
Table suite_table(const baselines::Run& run);  // title: suite and id; planned cells that are missing are rows too

// The cell's status, or "unproven": it is ok, and nothing was there to compare its losses with.
std::string status_word(const baselines::Cell& cell);

// Relative launch-to-launch sigma, pooled over the ok cells' step times; NaN when no cell has two launches.
double pooled_launch_sigma(const std::vector<baselines::Cell>& cells);

}  // namespace mbb::analysis
