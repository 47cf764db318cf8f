// The file system under a path: its kind, whether it may be written, and what is free.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/base/error.h"

namespace mbb::profiler {

struct DiskFacts {
  std::string path;         // the nearest existing folder at or above the path that was asked for
  std::string file_system;  // "ext4", "overlay", "nfs"; "type 0x..." for one without a name here
  bool network = false;     // reached over a network or through FUSE: locks and shared memory cannot be trusted
  bool writable = false;    // a file was made there and removed again
  std::int64_t free_bytes = 0;
};

Result<DiskFacts> disk_of(const std::string& path);

// By statfs's f_type, which some platforms give sign-extended from 32 bits.
bool is_network_file_system(std::int64_t statfs_type);

}  // namespace mbb::profiler
