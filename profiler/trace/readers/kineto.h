// Reads traces of PyTorch's profiler (Kineto, Chrome JSON, plain or gzip) into events with exact integer nanoseconds.
//
// Streaming: the file is never in memory whole. Times are microseconds with decimals in the file and are read as
// decimal text, not through a double. Nothing is guessed: what an event lacks is marked as missing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

struct KinetoEvent {
  int64_t start_ns = 0;
  int64_t duration_ns = -1;  // -1: the event has none
  int64_t correlation = -1;  // -1: none
  int64_t thread = -1;       // tid
  int32_t stream = -1;       // -1: not on a GPU stream
  int32_t device = -1;
  StringId name = 0;
  StringId category = 0;    // 0: the event has none
  int32_t collective = -1;  // index into KinetoTrace::collectives
  bool fractional = false;  // its start is no whole number of microseconds

  int64_t end_ns() const { return start_ns + (duration_ns > 0 ? duration_ns : 0); }
};

// What a collective's kernel says about itself.
struct KinetoCollective {
  std::string name;         // "allreduce"
  std::string group;        // process group name, "0"
  std::string description;  // "default_pg"
  std::string ranks;        // "[0, 1]"
  std::string dtype;
  int64_t in_elements = -1;
  int64_t group_size = -1;
};

struct KinetoTrace {
  std::vector<std::string> strings;
  std::vector<KinetoEvent> events;  // complete events (ph X), in file order
  std::vector<KinetoCollective> collectives;
  int32_t rank = -1;  // -1: the file does not say
  int32_t world_size = -1;
  std::vector<std::string> devices;  // models of the GPUs that the host has, each once
  std::string note;                  // what our own writer said of the times (KinetoWriteOptions::note); else empty
  int64_t other_events = 0;          // flows, metadata, counters: not read
  int64_t malformed_events = 0;      // without a name or a start, or with a number out of range: counted, left out

  const std::string& text(StringId id) const { return strings[id]; }
};

Result<KinetoTrace> read_kineto(const std::filesystem::path& path);

// True for an event of a category that runs on a GPU: kernel, memcpy, memset.
bool is_gpu_work(const KinetoTrace& trace, const KinetoEvent& event);

// The trace model: a track per GPU stream and per host thread, and one step window over all linked GPU work. Only GPU
// work linked to a runtime or driver call by correlation is taken, unless `orphans`. Kernels of collectives become
// comm.other; times are relative to the first event. No GPU work is an error that says so.
struct KinetoOptions {
  bool orphans = false;
};
Result<Trace> to_trace(const KinetoTrace& kineto, const KinetoOptions& options = {});

}  // namespace mbb::profiler
