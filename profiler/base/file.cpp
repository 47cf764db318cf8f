// File access by plain system calls: see file.h.
#include "profiler/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "profiler/base/descriptor.h"
#include "profiler/base/text.h"

namespace mbb {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

const char* remedy(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return "check the path";
    case EACCES:
    case EPERM: return "check who may read and write it";
    case EROFS: return "the file system is read-only: choose another folder";
    case ENOSPC:
    case EDQUOT: return "the disk or quota is full: free some space, or choose another folder";
    case EFBIG: return "a file size limit (ulimit -f) was reached: raise it";
    case EMFILE:
    case ENFILE: return "too many open files: raise ulimit -n";
    default: return "";
  }
}

tl::unexpected<Error> io_error(const char* doing, const std::string& path, int error) {
  const ErrorCode code = error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  return fail(code, fmt::format("{} {}: {}", doing, printable(path, 4096), std::strerror(error)), remedy(error));
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

Status write_and_close(const std::string& path, Descriptor& fd, std::string_view bytes, Flush flush) {
  if (!write_all(fd.get(), bytes)) return io_error("writing", path, errno);
  if (flush == Flush::kNow && ::fsync(fd.get()) != 0) return io_error("flushing", path, errno);
  if (!fd.close()) return io_error("closing", path, errno);
  return {};
}

// Opens a regular file for reading. O_NONBLOCK: a pipe in the place of a file must not hang us.
Result<std::unique_ptr<Descriptor>> open_regular(const std::string& path, size_t* told_bytes) {
  auto fd = std::make_unique<Descriptor>(open_retry(path.c_str(), O_RDONLY | O_NONBLOCK));
  if (fd->get() < 0) return io_error("reading", path, errno);
  struct stat info {};
  if (::fstat(fd->get(), &info) != 0) return io_error("reading", path, errno);
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kBadFile, fmt::format("reading {}: it is not a regular file", printable(path, 4096)));
  *told_bytes = static_cast<size_t>(info.st_size);
  return fd;
}

}  // namespace

Status read_file_in_pieces(const std::string& path, const std::function<void(std::string_view)>& take) {
  size_t told = 0;
  MB_ASSIGN(const auto fd, open_regular(path, &told));
  std::vector<char> piece(kPieceBytes);
  for (;;) {
    const ssize_t got = ::read(fd->get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("reading", path, errno);
    if (got == 0) return {};
    take(std::string_view(piece.data(), static_cast<size_t>(got)));
  }
}

Result<std::string> read_file(const std::string& path, size_t limit_bytes) {
  size_t told = 0;
  MB_ASSIGN(const auto fd, open_regular(path, &told));
  std::string bytes;
  size_t size = 0;
  // One byte more than told ends the loop without growing, shows a file that grows, and serves /proc, which tells 0.
  bytes.resize(std::min(told, limit_bytes) + 1);
  for (;;) {
    if (size > limit_bytes)
      return fail(ErrorCode::kBadFile,
                  fmt::format("reading {}: larger than {}, the most that is read whole", printable(path, 4096),
                              format_bytes(static_cast<double>(limit_bytes))));
    if (size == bytes.size()) bytes.resize(bytes.size() * 2 + 4096);
    const ssize_t got = ::read(fd->get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("reading", path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

Status check_writable(const std::string& path) {
  struct stat info {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (there && S_ISDIR(info.st_mode))
    return fail(ErrorCode::kIo, fmt::format("writing {}: it is a folder", printable(path, 4096)), "name a file in it");
  if (there && !S_ISREG(info.st_mode)) return {};
  const std::string folder = parent_of(path);
  if (!is_folder(folder))
    return fail(ErrorCode::kNotFound,
                fmt::format("writing {}: there is no folder {}", printable(path, 4096), printable(folder, 4096)),
                "make it first, or give another path");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return io_error("writing", path, errno);
  return {};
}

Status write_file(const std::string& named, std::string_view bytes, Flush flush) {
  std::string path = named;
  struct stat info {};
  if (::stat(named.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    Descriptor through(open_retry(named.c_str(), O_WRONLY | O_NOCTTY));
    if (through.get() < 0) return io_error("opening", named, errno);
    return write_and_close(named, through, bytes, Flush::kLater);
  }
  std::error_code ignored;
  if (std::filesystem::is_symlink(named, ignored)) path = std::filesystem::weakly_canonical(named, ignored).string();
  if (path.empty()) path = named;
  MB_TRY(check_writable(path));
  static std::atomic<unsigned> serial{0};
  const std::string temporary = fmt::format("{}{}{}-{}", path, kTemporarySuffix, ::getpid(), serial++);
  // O_TRUNC: a killed process of the same id may have left one of that name.
  Descriptor fd(open_retry(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
  if (fd.get() < 0) return io_error("creating", temporary, errno);
  if (auto written = write_and_close(temporary, fd, bytes, flush); !written) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return io_error("replacing", path, error);
  }
  return flush == Flush::kNow ? sync_folder(parent_of(path)) : Status{};
}

Status append_file(const std::string& path, std::string_view bytes) {
  Descriptor fd(open_retry(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644));
  if (fd.get() < 0) return io_error("opening", path, errno);
  return write_and_close(path, fd, bytes, Flush::kNow);
}

Status make_dirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return io_error("making folder", path, error.value());
  if (!is_folder(path)) return io_error("making folder", path, ENOTDIR);
  return {};
}

Status sync_folder(const std::string& folder) {
  const Descriptor fd(open_retry(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) return io_error("opening folder", folder, errno);
  // Some network file systems cannot flush a folder and say EINVAL; their renames are durable by themselves.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return io_error("flushing folder", folder, errno);
  return {};
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace mbb
