// What the canaries of a session say: fixed work, timed around each launch, that no product can make slower.
#pragma once

#include "baselines/store/records.h"

namespace mbb::analysis {

// Times of a cell's canaries over its good launches, in ns of thread CPU time; NaN where none was recorded. Read from
// the launches' counts canary_arithmetic_{before,after}_ns and canary_memory_{before,after}_ns.
struct CanaryTimes {
  double arithmetic_ns = baselines::kNotMeasured;
  double memory_ns = baselines::kNotMeasured;
};
CanaryTimes canary_times(const baselines::Cell& cell);

// By how much the machine itself has become slower for a cell of the CPU: the larger relative change of its two
// canaries; 0 when there is nothing to compare, when it has become faster, and for cells of other devices.
double machine_slowdown(const baselines::Cell& then, const baselines::Cell& now);

// Whether a machine that is slower by `slowdown` explains a cell that is slower by `change`.
bool explains(double slowdown, double change);

}  // namespace mbb::analysis
