// One step of a trace as text: a line a stream, a letter a slice of time. For terminals, logs and goldens.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::analysis {

struct TimelineOptions {
  int32_t step = -1;      // -1: the first traced one
  int width = 100;        // columns of time
  int32_t max_ranks = 8;  // the rest is named, not drawn
};

// Letters: # compute, t c e p d communication by kind (o: of no known kind), = copy, . less than half busy, blank idle.
// A slice shows what most of it was. kNotFound for a step that was not traced.
Result<std::string> timeline_text(const profiler::Trace& trace, const TimelineOptions& options = {});

}  // namespace mbb::analysis
