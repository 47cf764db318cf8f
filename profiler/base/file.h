// Whole-file reads and writes that either happen or do not: a reader never meets half a file. Errors name the path.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb {

inline constexpr size_t kReadFileLimit = size_t{4} << 30;

// The file's bytes. More than `limit_bytes` is an error, so that a wrong path (a device, a huge trace) cannot eat the
// memory of the machine. kNotFound when there is no such file.
Result<std::string> read_file(const std::string& path, size_t limit_bytes = kReadFileLimit);
// Calls `take` with each piece in order.
Status read_file_in_pieces(const std::string& path, const std::function<void(std::string_view)>& take);

// Writes beside the target, syncs, renames over it, syncs the folder. The folder must exist.
Status write_file(const std::string& path, std::string_view bytes);
// Appends and syncs; creates the file when missing. For logs of whole lines.
Status append_file(const std::string& path, std::string_view bytes);

Status make_dirs(const std::string& path);  // like mkdir -p
bool file_exists(const std::string& path);  // a file or a folder
bool is_folder(const std::string& path);

}  // namespace mbb
