// What a GPU event is, told by its name alone: for foreign traces, which carry no op paths.
#pragma once

#include <string_view>

#include "profiler/trace/trace.h"

namespace mbb::profiler {

bool is_comm_kernel(std::string_view name);    // nccl..., ...ncclKernel..., hip..., hccl...
bool is_memory_kernel(std::string_view name);  // Memcpy..., Memset..., dma
// None of nccl, Memcpy, Memset, dma, ...Sync, Stream Wait Event, ...LaunchKernel in its name.
bool is_compute_kernel(std::string_view name);

// comm.other, copy, or compute.
SpanKind kind_of_kernel(std::string_view name);

}  // namespace mbb::profiler
