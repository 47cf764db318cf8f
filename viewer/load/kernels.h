// The kernels of a trace by name: how often, how long, and for which ops.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::viewer {

// All device spans of one name. Times are ns of a call.
struct KernelRow {
  std::string name;
  profiler::SpanKind kind = profiler::SpanKind::kCompute;
  std::vector<std::string> ops;  // that launched it, layer numbers replaced by *, most time first
  std::int64_t calls = 0;
  double total_ns = 0;
  double p50_ns = 0;
  double p95_ns = 0;
  double max_ns = 0;
};

struct KernelTable {
  std::vector<KernelRow> rows;  // most time first
  double share_of = 0;          // steps x ranks that the totals are sums over; at least 1
};

// kCancelled when `cancelled` was set meanwhile. Spans with impossible numbers are left out.
Result<KernelTable> kernel_table(const profiler::Trace& trace, const std::atomic<bool>& cancelled);

}  // namespace mbb::viewer
