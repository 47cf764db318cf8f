// Writes one rank of a trace as PyTorch's profiler would (Kineto, Chrome JSON), so that HolisticTraceAnalysis, Perfetto
// and TensorBoard's tools open it.
//
// What readers rely on: ProfilerStep#N annotations, distributedInfo, kernels linked to their launches by correlation
// and flow, process-group arguments on collectives, one tid a stream, and spans of one tid that nest or follow each
// other. Times are microseconds with three decimals: exact nanoseconds. Names decide what readers take an event for, so
// communication that no NCCL kernel did is named "ncclDevKernel:<op path>", and copies without a driver's name
// "Memcpy ...".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/readers/kineto.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

struct KinetoGroup {
  std::string name;  // "tp"
  std::vector<int32_t> ranks;
};

struct KinetoWriteOptions {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string trace_name;  // shown by viewers
  std::string note;        // what the times are ("functional/cpu: replayed"); stored in the file
  std::vector<KinetoGroup> groups;
  // What is known of the collective that an op path names.
  std::function<std::optional<KinetoCollective>(const std::string& op)> collective;
};

// The JSON text. A span that starts inside another of its track and ends behind it goes to a tid of its own, beside.
// A trace without host calls gets one launch mark of no length at each device span's start, named "enqueue (replayed)":
// readers drop GPU events without a launch.
std::string kineto_text(const Trace& trace, const KinetoWriteOptions& options);

// To `path`, gzip-compressed when it ends in ".gz".
Status write_kineto(const std::filesystem::path& path, const Trace& trace, const KinetoWriteOptions& options);

}  // namespace mbb::profiler
