// The projection engine as suites use it.
#pragma once

#include "suites/runner/projection.h"

namespace mbb::suites {

// Empty where this build has none: cells whose GPUs are missing are then skipped.
Projector projector();

}  // namespace mbb::suites
