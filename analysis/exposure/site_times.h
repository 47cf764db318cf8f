// How long a tensor-parallel GEMM site takes together with its collectives, whichever way they overlap: what methods of
// overlap are compared by, many sites of one run at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/trace/trace.h"

namespace mbb::analysis {

// "qkv_fprop", "qkv_bprop" (dgrad and wgrad), likewise proj, fc1 and fc2; over layers, micro-batches, steps and ranks.
struct SiteTime {
  std::string site;
  int64_t calls = 0;  // times it ran on a rank in the steps of the trace
  double ns = 0;      // from the beginning of its first product or collective to the end of its last: of a layer, rank
                      // and micro-batch the median over steps, and of these the mean
};

// By site. Only steps that the trace has windows of count; a step's parts that are computed again stand apart from the
// first ones by their paths, and do not count.
std::vector<SiteTime> site_times(const profiler::Trace& trace);

}  // namespace mbb::analysis
