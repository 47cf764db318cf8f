// Context parallelism at resolve time: its communication by layer, and what it cannot be combined with.
#pragma once

#include "profiler/base/error.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// Reads the context-parallel knobs of l.config into `l` (whose model, tp, cp and sequence are set) and `sizes`. Errors
// name the knob and the rule: a sequence that is no multiple of 2·cp, an unknown type, a list of the wrong length,
// so many ranks in rings that their programs would not be planned in minutes.
Status resolve_context_parallel(Layout& l, ParallelSizes& sizes);

}  // namespace mbb::trainer
