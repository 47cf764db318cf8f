// What the canaries of a session say: fixed work, timed around each launch, that no product can make slower.
#pragma once

#include <string_view>

#include "baselines/store/records.h"

namespace mbb::analysis {

// Times of a cell's canaries over its good launches, in ns: of thread CPU time for cells of the CPU, else of the GPU's.
// NaN where none was recorded. Read from the launches' counts canary_{arithmetic,memory}_{before,after}_ns, of a GPU
// canary_gpu_...
struct CanaryTimes {
  double arithmetic_ns = baselines::kNotMeasured;
  double memory_ns = baselines::kNotMeasured;
};
CanaryTimes canary_times(const baselines::Cell& cell);

// By how much the machine itself has become slower for a cell: the larger relative change of its two canaries; 0 when
// there is nothing to compare, and when it has become faster.
double machine_slowdown(const baselines::Cell& then, const baselines::Cell& now);

// The metric of a cell that its canaries speak of.
std::string_view metric_of_canaries(const baselines::Cell& cell);

// Whether a machine that is slower by `slowdown` explains a cell that is slower by `change`.
bool explains(double slowdown, double change);

}  // namespace mbb::analysis
