// No run does more than its device can: one that seems to has a batch, a number of GPUs, a model or a device that is
// not what it says.
#pragma once

#include <optional>

#include "baselines/store/records.h"
#include "trainer/run/config.h"

namespace mbb::suites {

// Breaks an ok cell whose rate (causal, the least FLOPs) is above the dense peak of the fastest format that `recipe`
// multiplies in; without one, of the fastest that the device has. Where the cell's model FLOPs are not known the rate
// that its log prints is held against twice that peak, since a count of full attention is at most twice the causal one.
// Nothing is said of a device whose peaks are not known. After the metrics are filled.
void judge_rate(const std::optional<trainer::Recipe>& recipe, baselines::Cell& cell);

}  // namespace mbb::suites
