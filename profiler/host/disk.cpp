// statfs, and the names of what it answers.
#include "profiler/host/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

namespace mbb::profiler {
namespace {

// f_type as linux/magic.h and the file systems' own sources give it.
struct Known {
  std::uint32_t type;
  const char* name;
  bool network;
};
constexpr Known kKnown[] = {
    {0x6969, "nfs", true},          {0x517B, "smb", true},           {0xFF534D42, "cifs", true},
    {0xFE534D42, "smb2", true},     {0x0BD00BD0, "lustre", true},    {0x47504653, "gpfs", true},
    {0x19830326, "beegfs", true},   {0x00C36400, "ceph", true},      {0x65735546, "fuse", true},
    {0x5346414F, "afs", true},      {0x01021997, "9p", true},        {0x7461636F, "ocfs2", true},
    {0x01161970, "gfs2", true},     {0xAAD7AAEA, "panfs", true},     {0xEF53, "ext4", false},
    {0x58465342, "xfs", false},     {0x9123683E, "btrfs", false},    {0x01021994, "tmpfs", false},
    {0x794C7630, "overlay", false}, {0x2FC12FC1, "zfs", false},      {0x858458F6, "ramfs", false},
    {0xF2F52010, "f2fs", false},    {0x73717368, "squashfs", false},
};

const Known* known(std::int64_t statfs_type) {
  const auto type = static_cast<std::uint32_t>(statfs_type);
  const auto* found =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.type == type; });
  return found == std::end(kKnown) ? nullptr : found;
}

// By making one and removing it: permissions say little of read-only mounts, of /proc, or to root.
bool takes_a_file(const std::string& folder) {
  std::string name = folder + "/.mbbench-XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return false;
  ::unlink(name.c_str());
  ::close(file);
  return true;
}

}  // namespace

bool is_network_file_system(std::int64_t statfs_type) {
  const Known* kind = known(statfs_type);
  return kind != nullptr && kind->network;
}

Result<DiskFacts> disk_of(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path.empty() ? "." : path, error).lexically_normal();
  while (!std::filesystem::is_directory(at, error) && at != at.parent_path()) at = at.parent_path();
  struct statfs info {};
  if (::statfs(at.c_str(), &info) != 0)
    return fail(ErrorCode::kIo, fmt::format("{}: reading its file system: {}", at.string(), std::strerror(errno)));
  const auto type = static_cast<std::int64_t>(info.f_type);
  DiskFacts facts;
  facts.path = at.string();
  facts.file_system =
      known(type) != nullptr ? known(type)->name : fmt::format("type {:#x}", static_cast<std::uint32_t>(type));
  facts.network = is_network_file_system(type);
  facts.writable = takes_a_file(at.string());
  facts.free_bytes = static_cast<std::int64_t>(info.f_bavail) * static_cast<std::int64_t>(info.f_bsize);
  return facts;
}

}  // namespace mbb::profiler
