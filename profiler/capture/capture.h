// Capture of the whole process's CUDA work through libmbbench_cuda.so: kernels, copies, API calls, each with its op.
#pragma once

#include "profiler/base/error.h"
#include "profiler/capture/records.h"

namespace mbb::profiler {

// Attaches CUPTI. Call while no step runs. kUnavailable, with the holder's name, where another tool has CUPTI, where
// libcupti is missing or where the driver refuses; callers go on without and say so.
Status begin_capture();

// Flushes, detaches and hands over. After it, launches cost what they did before begin_capture().
Result<CaptureRecords> end_capture();

// cudaProfilerStart and cudaProfilerStop: the window that `nsys profile -c cudaProfilerApi` records.
Status profiler_range(bool on);

}  // namespace mbb::profiler
