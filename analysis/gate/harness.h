// Whether a cell's launches are whole: numbers of a run that lost a step or made a NaN are no evidence of anything. All
// who count launches ask here: tonight's rows, earlier nights, confirmations, bridges, baselines, arms and noise.
#pragma once

#include <cstdint>
#include <string>

#include "baselines/store/records.h"

namespace mbb::analysis {

// Of the launch that recorded most: what launches that are held against this cell must have.
int64_t steps_of(const baselines::Cell& cell);

// Why the launches of an ok cell cannot be judged: no launch, a launch without steps, a step missing or twice, a loss
// that is not finite, a step without a time, fewer steps than are due. Due are `train.train_iters`; of a user's
// command, which may log every n-th step, as many as its other launches logged and, by the numbers of its steps,
// train_iters where it was set (less one interval: what has no time before it may be left out); and `steps_due`, those
// of what the cell is held against (0: nothing says). Empty when they can.
std::string harness_error(const baselines::Cell& cell, int64_t steps_due = 0);

// Why a cell is no evidence, whatever became of it: its reason when it is not ok, else harness_error(). Empty when it
// is evidence.
std::string no_evidence(const baselines::Cell& cell, int64_t steps_due = 0);

// Whether two launches are one that was recorded twice (a log imported again): begun together, and three steps or more,
// all of the same times and losses.
bool is_same_launch(const baselines::Launch& a, const baselines::Launch& b);

}  // namespace mbb::analysis
