// The checksum file of a finished cell: one line a file, and a last line over all lines before it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::baselines {

constexpr const char* kChecksumFile = "checksums";

// Hashes every file below `folder` (temporaries of cut-off writes and the checksum file excepted), puts them on disk,
// and writes the checksum file in one rename.
Status write_checksums(const std::filesystem::path& folder);

// Checks the checksum file and every file it lists. kNotFound: there is no checksum file. kBadFile: names the file and
// says whether it is missing, of another size or of other content. `needed`: paths that must be listed.
Status verify_checksums(const std::filesystem::path& folder, std::initializer_list<const char*> needed);

// The files that the checksum file lists, which is checked and they are not.
Result<std::vector<std::string>> listed_files(const std::filesystem::path& folder);

}  // namespace mbb::baselines
