// An allocator snapshot of PyTorch as memory maps: every block with its lifetime, the live set at the peak, the curve.
#pragma once

#include <vector>

#include "baselines/store/records.h"
#include "profiler/memory/snapshot.h"

namespace mbb::suites {

// One map a device that allocated anything. Time is the place in the device's trace (unit "op"); blocks allocated
// before the trace began and freed in it have no size of their own and are left out, as replay() counts them.
std::vector<baselines::MemoryMap> snapshot_maps(const profiler::MemorySnapshot& snapshot);

}  // namespace mbb::suites
