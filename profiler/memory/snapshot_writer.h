// Writes an allocator snapshot in PyTorch's form, for pytorch.org/memory_viz and for parse_snapshot().
#pragma once

#include <filesystem>
#include <string>

#include "profiler/memory/snapshot.h"

namespace mbb::profiler {

// Pickle protocol 4 with those opcodes only that memory_viz's own reader knows: no code, no frames of the protocol.
// Stacks are written once and shared. Blocks must sum to their segments, as parse_snapshot() demands.
std::string snapshot_text(const MemorySnapshot& snapshot);

Status write_snapshot(const std::filesystem::path& path, const MemorySnapshot& snapshot);

}  // namespace mbb::profiler
