// /proc/meminfo and the memory controllers of both versions of control groups.
#include "profiler/host/host_memory.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/fingerprint.h"

namespace mbb::profiler {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number a file holds; "max" and anything else that is no number: nothing.
std::optional<int64_t> number_in(const fs::path& file) {
  const auto text = read_file(file);
  if (!text) return std::nullopt;
  return parse_int(trim(*text));
}

// "memory.stat" has "inactive_file 4096": bytes that the kernel gives back when others ask.
int64_t given_back(const fs::path& group, const char* field) {
  const auto text = read_file(group / "memory.stat");
  if (!text) return 0;
  for (const std::string_view line : split(*text, '\n')) {
    const size_t blank = line.find(' ');
    if (line.substr(0, blank) != field || blank == std::string_view::npos) continue;
    return parse_int(trim(line.substr(blank + 1))).value_or(0);
  }
  return 0;
}

struct ControllerFiles {
  const char *limit, *usage, *cache;
};
constexpr ControllerFiles kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr ControllerFiles kSecond{"memory.max", "memory.current", "inactive_file"};

// The least that a group and those above it, up to `top`, leave.
int64_t left_in_groups(const fs::path& top, const std::string& path, const ControllerFiles& files) {
  int64_t least = kUnlimited;
  fs::path group = (top / fs::path(path).relative_path()).lexically_normal();
  // In a container the path may be the host's, of which nothing is mounted here: then the top is this process's group.
  while (true) {
    const auto limit = number_in(group / files.limit), usage = number_in(group / files.usage);
    // The first version writes a number of pages near 2^63 for none.
    if (limit && usage && *limit < kUnlimited / 2)
      least = std::min(least, std::max<int64_t>(0, *limit - *usage + given_back(group, files.cache)));
    if (group == top || group == group.parent_path()) return least;
    group = group.parent_path();
  }
}

}  // namespace

int64_t available_memory_bytes(const fs::path& root) {
  int64_t available = kUnlimited;
  if (const auto meminfo = read_file(root / "proc/meminfo"); meminfo) {
    const std::string kib = field_of(*meminfo, "MemAvailable", ':');  // "12345 kB"
    if (const auto number = parse_int(kib.substr(0, kib.find(' ')))) available = *number * 1024;
  }
  if (const auto groups = read_file(root / "proc/self/cgroup"); groups)
    for (const std::string_view line : split(*groups, '\n')) {  // "4:memory:/a", of the second version "0::/a"
      const auto parts = split(line, ':');
      if (parts.size() < 3) continue;
      const fs::path sys = root / "sys/fs/cgroup";
      const auto controllers = split(parts[1], ',');
      const bool memory = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
      if (memory) available = std::min(available, left_in_groups(sys / "memory", std::string(parts[2]), kFirst));
      if (parts[1].empty()) available = std::min(available, left_in_groups(sys, std::string(parts[2]), kSecond));
    }
  return available == kUnlimited ? 0 : available;
}

}  // namespace mbb::profiler
