// A PyTorch allocator snapshot (memory_viz's pickle): segments, blocks, and the trace of allocations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

enum class MemoryAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOom,
  kOther
};
inline constexpr int kMemoryActions = 10;
const char* name(MemoryAction action);  // as in the file: "alloc", "free_requested", ...

struct SnapshotFrame {
  std::string function;
  std::string file;
  int64_t line = 0;
};

struct SnapshotBlock {
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t requested_bytes = 0;
  std::string state;   // "active_allocated", "active_pending_free" ("active_awaiting_free"), "inactive"
  int32_t stack = -1;  // index into MemorySnapshot::stacks, where it was allocated; -1: none
};

struct SnapshotSegment {
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t device = 0;
  int64_t stream = 0;
  std::string type;  // "large", "small"
  std::vector<SnapshotBlock> blocks;
};

struct SnapshotEvent {
  MemoryAction action = MemoryAction::kOther;
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t stream = 0;
  int64_t time_us = 0;
  int32_t stack = -1;  // index into MemorySnapshot::stacks; -1: none
};

struct MemorySnapshot {
  std::vector<SnapshotSegment> segments;
  std::vector<std::vector<SnapshotEvent>> events;  // by device
  std::vector<std::vector<SnapshotFrame>> stacks;

  int64_t reserved_bytes() const;
};

// Memory in use over one device's trace. Bytes are given back when a free completes.
struct MemoryReplay {
  int64_t peak_bytes = 0;
  size_t peak_event = 0;   // index of the event that reached it
  int64_t live_bytes = 0;  // at the end
  int64_t live_blocks = 0;
  int64_t unknown_frees = 0;  // of blocks allocated before the trace began: counted, nothing subtracted
};
MemoryReplay replay(const std::vector<SnapshotEvent>& events);

// Blocks must lie one after another in their segment and sum to it; anything else is an error.
Result<MemorySnapshot> read_snapshot(const std::filesystem::path& path);
Result<MemorySnapshot> parse_snapshot(std::string_view bytes);

}  // namespace mbb::profiler
