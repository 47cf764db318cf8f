// From traced lifetimes to an allocator snapshot.
#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/memory/snapshot_writer.h"
#include "suites/export/export.h"

namespace mbb::suites {
namespace {

using baselines::MemoryMap;
using baselines::TensorBytes;
using profiler::MemoryAction;
using profiler::MemorySnapshot;
using profiler::SnapshotEvent;

constexpr int64_t kArenaAddress = 0x7000'0000'0000;
constexpr int64_t kOutsideAddress = 0x7800'0000'0000;  // what has no place in the arena
constexpr int64_t kAlign = 512;

// "layers.3.mlp.fc1.fwd" as a call stack, innermost first: what wrote it, then the parts of its path.
std::vector<profiler::SnapshotFrame> stack_of(const TensorBytes& tensor) {
  std::vector<profiler::SnapshotFrame> stack;
  stack.push_back({tensor.path, tensor.category, 0});
  std::string path = tensor.first_writer;
  if (path.empty()) return stack;
  for (;;) {
    const size_t dot = path.rfind('.');
    stack.push_back({path.substr(dot == std::string::npos ? 0 : dot + 1), path, 0});
    if (dot == std::string::npos) break;
    path.resize(dot);
  }
  return stack;
}

struct Lifetime {
  const TensorBytes* tensor;
  int64_t address;
};

// The segment [address, address + bytes) with the blocks that are alive at the end of the trace.
profiler::SnapshotSegment segment_of(int64_t address, int64_t bytes, std::vector<const Lifetime*> alive,
                                     const std::vector<int32_t>& stacks, const Lifetime* first) {
  std::sort(alive.begin(), alive.end(), [](const auto* a, const auto* b) { return a->address < b->address; });
  profiler::SnapshotSegment segment;
  segment.address = address;
  segment.bytes = bytes;
  segment.type = "large";
  int64_t at = address;
  for (const Lifetime* one : alive) {
    if (one->address < at) continue;  // a view of bytes that are counted already
    if (one->address > at) segment.blocks.push_back({at, one->address - at, 0, "inactive", -1});
    segment.blocks.push_back({one->address, one->tensor->bytes, one->tensor->bytes, "active_allocated",
                              stacks[static_cast<size_t>(one - first)]});
    at = one->address + one->tensor->bytes;
  }
  if (at < address + bytes) segment.blocks.push_back({at, address + bytes - at, 0, "inactive", -1});
  return segment;
}

}  // namespace

Result<MemorySnapshot> memory_snapshot(const MemoryMap& map) {
  if (map.tensors.empty())
    return fail(ErrorCode::kNotFound, fmt::format("the memory history of {} was not recorded", map.rank_class),
                "run again with profiling.record_memory_history = true");
  std::vector<Lifetime> lifetimes;
  int64_t arena = 0, outside = kOutsideAddress, end = 0;
  for (const TensorBytes& tensor : map.tensors) {
    if (tensor.bytes <= 0 || tensor.category == kPinnedHost) continue;
    end = std::max(end, tensor.to);
    if (tensor.offset >= 0) {
      arena = std::max(arena, tensor.offset + tensor.bytes);
      lifetimes.push_back({&tensor, kArenaAddress + tensor.offset});
    } else {
      lifetimes.push_back({&tensor, outside});
      outside += (tensor.bytes + kAlign - 1) / kAlign * kAlign;
    }
  }
  MemorySnapshot snapshot;
  std::vector<int32_t> stacks;
  struct Timed {
    int64_t at;
    int order;  // frees before allocations, since a buffer is reused in the same instant; lives of no length between
    SnapshotEvent event;
  };
  std::vector<Timed> events;
  const int64_t unit = map.unit == "ns" ? 1000 : 1;
  const auto event = [&](MemoryAction action, const Lifetime& life, int64_t at, int order) {
    SnapshotEvent e{action, life.address, life.tensor->bytes, 0, at / unit, stacks.back()};
    events.push_back({at, order, e});
  };
  std::vector<const Lifetime*> in_arena, beside;
  for (const Lifetime& life : lifetimes) {
    stacks.push_back(static_cast<int32_t>(snapshot.stacks.size()));
    snapshot.stacks.push_back(stack_of(*life.tensor));
    const bool no_length = life.tensor->to <= life.tensor->from;
    event(MemoryAction::kAlloc, life, life.tensor->from, no_length ? 2 : 3);
    if (life.tensor->to >= end) {
      (life.tensor->offset >= 0 ? in_arena : beside).push_back(&life);
      continue;
    }
    event(MemoryAction::kFreeRequested, life, life.tensor->to, no_length ? 2 : 0);
    event(MemoryAction::kFreeCompleted, life, life.tensor->to, no_length ? 2 : 1);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Timed& a, const Timed& b) { return a.at != b.at ? a.at < b.at : a.order < b.order; });
  std::vector<SnapshotEvent>& trace = snapshot.events.emplace_back();
  const auto segment = [&](int64_t address, int64_t bytes, const std::vector<const Lifetime*>& alive) {
    if (bytes <= 0) return;
    snapshot.segments.push_back(segment_of(address, bytes, alive, stacks, lifetimes.data()));
    trace.push_back({MemoryAction::kSegmentAlloc, address, bytes, 0, 0, -1});
  };
  segment(kArenaAddress, arena, in_arena);
  segment(kOutsideAddress, outside - kOutsideAddress, beside);
  for (const Timed& one : events) trace.push_back(one.event);
  return snapshot;
}

Result<std::vector<std::string>> export_memory(const ExportSource& source, const std::filesystem::path& to) {
  std::vector<std::string> files;
  for (const baselines::Cell& cell : source.run.cells) {
    if (!source.cell.empty() && cell.name != source.cell) continue;
    for (const baselines::Launch& launch : cell.launches)
      for (const MemoryMap& map : launch.memory) {
        if (map.tensors.empty()) continue;
        MB_ASSIGN(const MemorySnapshot snapshot, memory_snapshot(map));
        const std::filesystem::path folder = to / cell.name / fmt::format("launch{}", launch.index);
        MB_TRY(make_dirs(folder));
        const std::string file = folder / (map.rank_class + ".pickle");
        MB_TRY(profiler::write_snapshot(file, snapshot));
        files.push_back(file);
      }
  }
  if (files.empty())
    return fail(ErrorCode::kNotFound, fmt::format("run {} recorded no memory history", source.run.id),
                "run again with profiling.record_memory_history = true");
  return files;
}

}  // namespace mbb::suites
