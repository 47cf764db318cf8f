// Gradients that launches left in a run's bundle, held against each other.
#pragma once

#include <vector>

#include "baselines/store/bundle.h"

namespace mbb::suites {

// The verdict of judge_gradients() where both the cell and its one-rank cells among `finished` recorded theirs.
Status judge_recorded_gradients(baselines::BundleWriter& writer, baselines::Cell& cell,
                                const std::vector<baselines::Cell>& finished);

}  // namespace mbb::suites
