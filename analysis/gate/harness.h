// Whether a cell's launches are whole: numbers of a run that lost a step or made a NaN are no evidence of anything.
#pragma once

#include <string>

#include "baselines/store/records.h"

namespace mbb::analysis {

// Why the launches of an ok cell cannot be judged: no launch, a launch without steps, a step missing or twice, fewer
// steps than `train.train_iters`, a loss that is not finite, a step without a time. Empty when they can.
std::string harness_error(const baselines::Cell& cell);

}  // namespace mbb::analysis
