// Whole-file reads and writes that either happen or do not: a reader never meets half a file. Errors name the path.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb {

inline constexpr size_t kReadFileLimit = size_t{4} << 30;

// The bytes of a regular file; a folder, pipe or device in its place is kBadFile, not a hang, and so is a file larger
// than `limit_bytes`. kNotFound when there is none.
Result<std::string> read_file(const std::string& path, size_t limit_bytes = kReadFileLimit);
// Calls `take` with each piece of a regular file in order.
Status read_file_in_pieces(const std::string& path, const std::function<void(std::string_view)>& take);

// kNow: on disk when the call returns, so it survives a power cut. kLater: whoever writes many files flushes their
// folders together; being killed is safe all the same.
enum class Flush { kNow, kLater };

// Writes beside the target, flushes, renames over it: killed at any moment, the target is the old file or the new one.
// The folder must exist. A link is followed: what it names is replaced. What is no regular file (/dev/stdout, a pipe)
// is written through, never replaced. A temporary's name holds kTemporarySuffix, so that what a kill left can be told
// apart.
Status write_file(const std::string& path, std::string_view bytes, Flush flush = Flush::kNow);
inline constexpr std::string_view kTemporarySuffix = ".partial-";
// Whether write_file has a folder to write into, for whoever works long before it writes.
Status check_writable(const std::string& path);
// Appends and flushes; creates the file when missing. For logs of whole lines.
Status append_file(const std::string& path, std::string_view bytes);

Status make_dirs(const std::string& path);      // like mkdir -p
Status sync_folder(const std::string& folder);  // makes the names in it durable
bool file_exists(const std::string& path);      // a file or a folder
bool is_folder(const std::string& path);

}  // namespace mbb
