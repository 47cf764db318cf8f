// Capture with CUPTI's activity records: who launched what, when it ran, and which op it belongs to.
//
// Launches are joined to ops by external correlation. A CUDA graph's nodes are joined when they are made: the op marked
// on the capturing thread is kept with the node's id and goes over to the clones of an instantiated graph, so graphs
// must be captured while this is attached. One capture a process; devices are told apart by the records.
#pragma once

#include <cstdint>

#include "profiler/base/error.h"
#include "profiler/capture/records.h"

namespace mbb::profiler::cupti {

// Attaches. kUnavailable: no CUPTI, no permission, or another tool holds it (its name is in the error).
Status begin();

// Flushes, detaches, stops the drain thread and gives everything to `sink`. Device work must have ended.
Status end(const CaptureSink& sink);

bool attached();

// Marks what this thread launches from now on, until unmark(); one level, no nesting. No-ops while detached.
void mark(uint32_t op);
void unmark();

}  // namespace mbb::profiler::cupti
