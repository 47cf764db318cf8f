// Memory this process may still take on its host.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mbb::profiler {

// What the kernel says is available without swapping (/proc/meminfo), or what the control groups of this process leave
// where that is less; file caches count as free in both. 0: neither says. `root` holds proc/ and sys/ in place of "/".
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace mbb::profiler
