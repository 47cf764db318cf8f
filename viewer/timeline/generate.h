// Traces made by rule, for benchmarks and tests of the timeline: a pipeline of ranks with compute, communication,
// copies and host launches.
#pragma once

#include <cstdint>

#include "profiler/trace/trace.h"

namespace mbb::viewer {

struct GeneratedTrace {
  std::int64_t spans = 100'000;  // about as many are made
  int ranks = 4;
  int steps = 4;
  int micro_batches = 8;
  std::uint64_t seed = 1;
  double stretch = 1.0;  // factor on the durations of GEMMs: two traces that differ where it is known
};

// Equal options give equal traces. Spans are ordered by (track, start), as readers give them.
profiler::Trace generate_trace(const GeneratedTrace& options);

}  // namespace mbb::viewer
