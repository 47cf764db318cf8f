// HTA mode: the figures HolisticTraceAnalysis computes from a Kineto trace, by its definitions, so that our reader can
// be checked against it. Whole microseconds, as HTA counts. For exact sums use the strict mode: to_trace() and
// break_down().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/readers/kineto.h"

namespace mbb::analysis {

// An event as HTA sees it: starts rounded up and ends rounded down to microseconds where any start is fractional.
struct HtaEvent {
  int64_t start_us = 0;
  int64_t end_us = 0;
  const profiler::KinetoEvent* event = nullptr;
};

// The events HTA keeps. Without a duration, without a category, or of category "Trace": dropped. With two and more
// ProfilerStep#N: CPU events that start before the last step, and the GPU events whose correlation one of them has.
struct HtaEvents {
  const profiler::KinetoTrace* trace = nullptr;
  std::vector<HtaEvent> cpu;  // in file order
  std::vector<HtaEvent> gpu;
};
HtaEvents hta_events(const profiler::KinetoTrace& trace);

// One step: CPU events that start inside ProfilerStep#`step`, and the GPU events launched by them.
Result<HtaEvents> hta_step(const profiler::KinetoTrace& trace, int64_t step);

// All in µs. K = last end - first start of the GPU events; idle = K - U(all GPU); non-compute = K - compute - idle.
struct HtaBreakdown {
  int64_t span_us = 0;
  int64_t idle_us = 0;
  int64_t compute_us = 0;
  int64_t non_compute_us = 0;
  int64_t comm_us = 0;
  int64_t overlap_us = 0;
  int64_t exposed_us() const { return comm_us - overlap_us; }
};
// An error when there is no GPU event.
Result<HtaBreakdown> hta_breakdown(const HtaEvents& events);

// Gaps between kernels, copies and sets of one stream in µs: host wait (its launch began after the previous end), else
// kernel wait (gap under 30 µs), else other.
struct HtaIdle {
  int64_t host_wait_us = 0;
  int64_t kernel_wait_us = 0;
  int64_t other_us = 0;
};
HtaIdle hta_idle(const HtaEvents& events, int32_t stream);

// Work queued on a stream: +1 at a launch call with a linked GPU event, -1 at that event's start.
struct HtaQueue {
  int64_t samples = 0;
  double mean = 0;
  int64_t max = 0;
};
HtaQueue hta_queue(const HtaEvents& events, int32_t stream);

}  // namespace mbb::analysis
