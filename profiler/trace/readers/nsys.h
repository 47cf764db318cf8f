// Reads the SQLite export of Nsight Systems into the trace model.
//
// The export's schema changes between versions: tables are absent when empty, may carry a version suffix (_V2), and
// their columns vary. The reader asks the file what it has and needs only start, end, device, stream and a name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

struct NsysOptions {
  bool copies = true;  // memory copies and fills beside the kernels; fills count as compute
  bool host = true;    // runtime calls and NVTX ranges, and with them which range launched a kernel
};

struct NsysTrace {
  // A rank is a GPU (deviceId); one track per GPU stream and two per host thread (API calls, NVTX ranges), which belong
  // to rank -1. One step window a GPU, over its kernels (and copies). Span::op of a kernel is the innermost NVTX range
  // its launch lay in; times are relative to the first event.
  Trace trace;
  std::vector<std::string> devices;  // models of the GPUs that the host has, each once
  int64_t unlinked_kernels = 0;      // whose launch is not in the file
  int64_t malformed_rows = 0;        // that end before they start or lack a field: left out
};

inline constexpr int32_t kNsysHostRank = -1;

// A file that is no SQLite database, damaged, or without GPU activity is an error that says so.
Result<NsysTrace> read_nsys(const std::filesystem::path& path, const NsysOptions& options = {});

}  // namespace mbb::profiler
