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

// Whether equal ids of collectives in two parts are one call.
enum class CollectiveIds : uint8_t { kOfOnePart, kShared };

// Times count from the earliest zero. kMismatch for a rank that two parts hold.
Result<Trace> merge_ranks(std::span<const RankTrace> parts, CollectiveIds ids = CollectiveIds::kOfOnePart);

}  // namespace mbb::profiler
