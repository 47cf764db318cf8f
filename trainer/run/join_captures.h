// What processes captured each of its own rank, as one trace at rank 0.
#pragma once

#include "profiler/capture/device_trace.h"
#include "profiler/trace/align_ranks.h"
#include "trainer/comm/communicator.h"

namespace mbb::trainer {

struct JoinedCapture {
  profiler::DeviceTrace device;
  profiler::Alignment alignment;
};

// All ranks call it; rank 0 gets the whole, the others an empty one.
Result<JoinedCapture> join_captures(Communicator& everyone, const profiler::DeviceTrace& mine);

}  // namespace mbb::trainer
