// What a capture hands over: one plain record per kernel, copy, fill, API call and wait, already joined to the op that
// launched it, and the way these cross the boundary of libmbbench_cuda.so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mbb::profiler {

// kDriverApi: a launch through the driver, by a library or by the runtime itself.
enum class RecordKind : uint32_t { kKernel, kCopy, kFill, kApi, kDriverApi, kWait, kOverhead };

// `op` is the id that was marked while the work was launched, or while its graph node was made; 0: none.
struct CaptureRecord {
  int64_t start_ns = 0;  // CLOCK_MONOTONIC, as monotonic_ns()
  int64_t end_ns = 0;
  int64_t bytes = 0;         // copies and fills
  uint32_t correlation = 0;  // an API call and the device work it started; unique in the process
  uint32_t name = 0;         // index into CaptureRecords::names
  uint32_t op = 0;
  uint32_t device = 0;  // device work only
  uint32_t lane = 0;    // device work: CUDA stream; API calls: thread
  RecordKind kind = RecordKind::kKernel;
  bool from_graph = false;
};

struct CaptureRecords {
  std::vector<CaptureRecord> records;
  std::vector<std::string> names = {""};
  uint64_t dropped = 0;  // records the driver had no room for
};

// Receives a capture; `names` come in order, before the records that use them.
struct CaptureSink {
  void* self;
  void (*name)(void* self, const char* text);
  void (*records)(void* self, const CaptureRecord* records, size_t count);
  void (*dropped)(void* self, uint64_t records);
};

CaptureSink sink_into(CaptureRecords& records);

}  // namespace mbb::profiler
