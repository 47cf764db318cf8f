// Replays a device's allocations into lifetimes.
#include "suites/runner/snapshot_map.h"

#include <fmt/core.h>

#include <map>

namespace mbb::suites {
namespace {

using profiler::MemoryAction;

constexpr const char* kCategory = "allocated";

// The innermost frame that is Python's, as people read stacks; else the innermost.
std::string place_of(const profiler::MemorySnapshot& snapshot, int32_t stack, int64_t address) {
  if (stack < 0 || static_cast<size_t>(stack) >= snapshot.stacks.size() ||
      snapshot.stacks[static_cast<size_t>(stack)].empty())
    return fmt::format("block at {:#x}", address);
  const auto& frames = snapshot.stacks[static_cast<size_t>(stack)];
  const profiler::SnapshotFrame* shown = &frames.front();
  for (const auto& frame : frames)
    if (frame.file.ends_with(".py")) {
      shown = &frame;
      break;
    }
  const size_t slash = shown->file.rfind('/');
  const std::string file = slash == std::string::npos ? shown->file : shown->file.substr(slash + 1);
  return fmt::format("{} {}:{}", shown->function, file, shown->line);
}

baselines::MemoryMap map_of(const profiler::MemorySnapshot& snapshot, size_t device) {
  const auto& events = snapshot.events[device];
  baselines::MemoryMap map;
  map.rank_class = fmt::format("device{}", device);
  std::map<int64_t, size_t> alive;  // address -> index in map.tensors
  int64_t bytes = 0, peak_at = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    const auto at = static_cast<int64_t>(i);
    if (event.action == MemoryAction::kAlloc) {
      bytes += event.bytes;
      alive[event.address] = map.tensors.size();
      baselines::TensorBytes block;
      block.path = place_of(snapshot, event.stack, event.address);
      block.category = kCategory;
      block.bytes = event.bytes;
      block.from = at;
      block.to = static_cast<int64_t>(events.size());
      map.tensors.push_back(std::move(block));
    } else if (const auto found = alive.find(event.address);
               event.action == MemoryAction::kFreeCompleted && found != alive.end()) {
      bytes -= map.tensors[found->second].bytes;
      map.tensors[found->second].to = at;
      alive.erase(found);
    } else {
      continue;
    }
    map.curve.push_back({at, kCategory, bytes});
    if (bytes <= map.peak_bytes) continue;
    map.peak_bytes = bytes;
    peak_at = at;
  }
  for (const baselines::TensorBytes& block : map.tensors)
    if (block.from <= peak_at && block.to > peak_at) map.live_at_peak.push_back(block);
  map.categories.push_back({kCategory, -1, map.peak_bytes});
  return map;
}

}  // namespace

std::vector<baselines::MemoryMap> snapshot_maps(const profiler::MemorySnapshot& snapshot) {
  std::vector<baselines::MemoryMap> maps;
  for (size_t device = 0; device < snapshot.events.size(); ++device) {
    baselines::MemoryMap map = map_of(snapshot, device);
    if (!map.tensors.empty()) maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace mbb::suites
