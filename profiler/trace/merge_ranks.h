// Traces of ranks that were recorded each by itself, as one.
#pragma once

#include <cstdint>
#include <span>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

struct RankTrace {
  const Trace* trace = nullptr;
  int64_t zero_ns = 0;  // where its zero lies on the clock that all parts share
};

// Times count from the earliest zero. Ids of collectives stay those of one part: nothing says which calls of two parts
// are one. kMismatch for a rank that two parts hold.
Result<Trace> merge_ranks(std::span<const RankTrace> parts);

}  // namespace mbb::profiler
