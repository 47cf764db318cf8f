// The checksum file of a finished cell.
#include "baselines/store/checksums.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeader = "mbbench-checksums 1\n";
constexpr std::size_t kHashDigits = 32;
constexpr std::string_view kLastName = "end";

struct FileSum {
  std::string hash;
  std::int64_t bytes = 0;
};

std::string hex(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_text(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

// Streams, so that a trace of many gigabytes needs no memory.
// `flush`: puts the file on disk as well.
Result<FileSum> sum_file(const fs::path& path, bool flush) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) {
    const int error = errno;
    return fail(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("{}: {}", path.string(), std::strerror(error)));
  }
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> block(std::size_t{1} << 18);
  FileSum sum;
  ssize_t got = 0;
  while (regular && (got = ::read(fd, block.data(), block.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    XXH3_128bits_update(state.get(), block.data(), static_cast<std::size_t>(got));
    sum.bytes += got;
  }
  if (regular && flush && ::fsync(fd) != 0) got = -1;
  const int error = errno;
  ::close(fd);
  if (!regular) return fail(ErrorCode::kBadFile, fmt::format("{}: not a regular file", path.string()));
  if (got < 0) return fail(ErrorCode::kIo, fmt::format("reading {}: {}", path.string(), std::strerror(error)));
  sum.hash = hex(XXH3_128bits_digest(state.get()));
  return sum;
}

// A path that stays inside the folder and on its line.
bool is_plain_path(std::string_view path) {
  if (path.empty() || path.front() == '/') return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  const fs::path parts(path);
  return std::none_of(parts.begin(), parts.end(),
                      [](const fs::path& part) { return part.empty() || part == ".." || part == "."; });
}

Result<std::vector<std::string>> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    std::error_code ignored;
    if (entries->is_directory(ignored) && !entries->is_symlink(ignored)) continue;
    std::string relative = entries->path().lexically_relative(folder).string();
    if (relative == kChecksumFile || relative.find(kTemporarySuffix) != std::string::npos) continue;
    if (!is_plain_path(relative)) {
      return fail(ErrorCode::kBadArgument,
                  fmt::format("a file in {} has control characters in its name", folder.string()),
                  "rename or remove it");
    }
    files.push_back(std::move(relative));
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("listing {}: {}", folder.string(), error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

struct Line {
  std::string_view hash;
  std::int64_t bytes = 0;
  std::string_view path;
};

// "<32 digits> <bytes> <path>"
bool parse_line(std::string_view text, Line& line) {
  if (text.size() < kHashDigits + 4 || text[kHashDigits] != ' ') return false;
  line.hash = text.substr(0, kHashDigits);
  text.remove_prefix(kHashDigits + 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), line.bytes);
  if (error != std::errc{} || end == text.data() + text.size() || *end != ' ') return false;
  line.path = text.substr(static_cast<std::size_t>(end - text.data()) + 1);
  return is_plain_path(line.path);
}

// Splits the file into its lines after checking the last one, which covers the others.
Result<std::vector<Line>> parse_checksums(std::string_view text) {
  const auto bad = [](std::string_view what) {
    return fail(ErrorCode::kBadFile, fmt::format("{}: {}", kChecksumFile, what),
                "restore the cell from a copy, or run it again");
  };
  if (!text.starts_with(kHeader)) return bad("it does not begin with \"mbbench-checksums 1\"");
  if (!text.ends_with('\n')) return bad("it is cut off");
  const std::size_t last = text.find_last_of('\n', text.size() - 2) + 1;
  Line end;
  if (!parse_line(text.substr(last, text.size() - last - 1), end) || end.path != kLastName) return bad("it is cut off");
  if (end.hash != hash_text(text.substr(0, last))) return bad("its last line does not fit the others: it was edited");
  std::vector<Line> lines;
  for (std::size_t at = kHeader.size(); at < last;) {
    const std::size_t stop = text.find('\n', at);
    Line line;
    if (!parse_line(text.substr(at, stop - at), line)) return bad("a line is not \"hash bytes path\"");
    lines.push_back(line);
    at = stop + 1;
  }
  return lines;
}

Status verify_file(const fs::path& folder, const Line& line) {
  const char* hint = "restore the cell from a copy, or run it again";
  const auto sum = sum_file(folder / line.path, false);
  if (!sum && sum.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kBadFile, fmt::format("{} is missing", line.path), hint);
  }
  if (!sum) return tl::unexpected<Error>(sum.error());
  if (sum->bytes != line.bytes) {
    return fail(ErrorCode::kBadFile,
                fmt::format("{} has {} bytes where {} were written", line.path, sum->bytes, line.bytes), hint);
  }
  if (sum->hash != line.hash) {
    return fail(ErrorCode::kBadFile, fmt::format("{} is not what was written: it was edited or damaged", line.path),
                hint);
  }
  return {};
}

}  // namespace

Status write_checksums(const fs::path& folder) {
  MB_ASSIGN(const auto files, files_below(folder));
  std::string text(kHeader);
  std::set<fs::path> folders;
  for (const std::string& file : files) {
    MB_ASSIGN(const FileSum sum, sum_file(folder / file, true));
    folders.insert((folder / file).parent_path());
    text += fmt::format("{} {} {}\n", sum.hash, sum.bytes, file);
  }
  text += fmt::format("{} {} {}\n", hash_text(text), files.size(), kLastName);
  for (const fs::path& written : folders) MB_TRY(sync_folder(written));
  return write_file(folder / kChecksumFile, text);
}

Status verify_checksums(const fs::path& folder, std::initializer_list<const char*> needed) {
  MB_ASSIGN(const std::string text, read_file(folder / kChecksumFile));
  MB_ASSIGN(const auto lines, parse_checksums(text));
  for (const char* path : needed) {
    if (std::none_of(lines.begin(), lines.end(), [path](const Line& line) { return line.path == path; })) {
      return fail(ErrorCode::kBadFile, fmt::format("{}: it does not list {}", kChecksumFile, path));
    }
  }
  for (const Line& line : lines) MB_TRY(verify_file(folder, line));
  return {};
}

Result<std::vector<std::string>> listed_files(const fs::path& folder) {
  MB_ASSIGN(const std::string text, read_file(folder / kChecksumFile));
  MB_ASSIGN(const auto lines, parse_checksums(text));
  std::vector<std::string> files;
  for (const Line& line : lines) files.emplace_back(line.path);
  return files;
}

}  // namespace mbb::baselines
