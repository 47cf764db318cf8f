// From captured records to the trace model: every kernel, copy and fill gets its op, phase, micro-batch and step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "profiler/capture/records.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

// One thing a rank does that launches device work. Site i of a rank is marked with op id i + 1.
struct OpSite {
  std::string path;  // op path
  SpanKind kind = SpanKind::kCompute;
  StreamKind stream = StreamKind::kCompute;
  Phase phase = Phase::kNone;
  int32_t micro_batch = kNoMicroBatch;
  uint64_t collective = 0;  // the same on every member of one collective of a step; below 2^40; 0: none
};

// A rank of this process: its device, its sites, and where its steps lay on the monotonic clock.
struct CapturedRank {
  int32_t rank = 0;
  int32_t device = 0;
  std::vector<OpSite> sites;
  std::vector<StepWindow> steps;  // ascending
};

// How much of the device's time inside steps has an op. Library internals count for the op that called them.
struct Attribution {
  int64_t device_ns = 0;  // sum over kernels, copies and fills
  int64_t device_events = 0;
  int64_t unattributed_ns = 0;
  int64_t unattributed_events = 0;
  std::vector<std::pair<std::string, int64_t>> unattributed_by_name;  // ns, largest first

  double unattributed_pct() const;
};

struct DeviceTrace {
  Trace trace;
  Attribution attribution;
};

// One track a (rank, CUDA stream) and a (rank, host thread). A copy is a copy unless its op communicates; a fill counts
// as compute, since it moves nothing between memories. Device work outside every step keeps kNoStep; work of devices
// that no rank here owns is left out.
DeviceTrace device_trace(const CaptureRecords& captured, std::span<const CapturedRank> ranks);

}  // namespace mbb::profiler
