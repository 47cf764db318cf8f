// Whole files, read and written so that a reader never sees half of one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb {

constexpr std::int64_t kDefaultReadLimitBytes = std::int64_t{1} << 30;

// The bytes of a regular file. A folder, pipe or device, or a file larger than `limit_bytes`, is an error.
Result<std::string> read_file(const std::filesystem::path& path, std::int64_t limit_bytes = kDefaultReadLimitBytes);

// kNow: on disk when the call returns, so it survives a power cut. kLater: whoever writes many files flushes them
// together; being killed is safe all the same.
enum class Flush { kNow, kLater };

// Writes beside the target, flushes, renames: killed at any moment, the target is the old file or the new one. The
// temporary's name ends in kTemporarySuffix and a process id.
Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes, Flush flush = Flush::kNow);
constexpr std::string_view kTemporarySuffix = ".partial-";

// Makes the names in `folder` durable.
Status sync_folder(const std::filesystem::path& folder);

// Creates a folder and its parents; one that is already there is fine.
Status make_folders(const std::filesystem::path& folder);

}  // namespace mbb
