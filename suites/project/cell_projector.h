// The projection engine as the runner takes it.
#pragma once

#include "suites/runner/projection.h"

namespace mbb::suites {

// Projects a cell with the costs of the requested card. The interval and the basis are in the engine's words.
CellProjector cell_projector();

}  // namespace mbb::suites
