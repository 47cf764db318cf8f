// Whole files, read and written so that a reader never sees half of one.
#include "profiler/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace mbb {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // Closing reports late write errors (network file systems, quotas).
  int close_now() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

const char* remedy(int error) {
  switch (error) {
    case ENOENT: return "check the path";
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

tl::unexpected<Error> io_error(const std::filesystem::path& path, const char* doing, int error) {
  const ErrorCode code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return fail(code, fmt::format("{} {}: {}", doing, path.string(), std::strerror(error)), remedy(error));
}

Status write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return io_error(path, "writing", errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status write_new(const std::filesystem::path& temporary, std::string_view bytes, Flush flush) {
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return io_error(temporary, "creating", errno);
  MB_TRY(write_all(file.get(), bytes, temporary));
  if (flush == Flush::kNow && ::fsync(file.get()) != 0) return io_error(temporary, "flushing", errno);
  if (file.close_now() != 0) return io_error(temporary, "closing", errno);
  return {};
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, std::int64_t limit_bytes) {
  // O_NONBLOCK: a pipe in the place of a file must not hang us.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return io_error(path, "reading", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error(path, "reading", errno);
  if (!S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kBadFile, fmt::format("reading {}: it is not a regular file", path.string()));
  }
  if (info.st_size > limit_bytes) {
    return fail(ErrorCode::kBadFile, fmt::format("reading {}: {} bytes, more than the limit of {}", path.string(),
                                                 info.st_size, limit_bytes));
  }
  // One byte more than the size shows a file that grows, and serves /proc, whose files say 0.
  std::string bytes;
  std::size_t used = 0;
  while (true) {
    bytes.resize(std::max(used + 4096, static_cast<std::size_t>(info.st_size) + 1));
    const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "reading", errno);
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
    if (std::cmp_greater(used, limit_bytes)) {
      return fail(ErrorCode::kBadFile, fmt::format("reading {}: more than {} bytes", path.string(), limit_bytes));
    }
  }
  bytes.resize(used);
  return bytes;
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes, Flush flush) {
  std::filesystem::path temporary = path;
  temporary += fmt::format("{}{}", kTemporarySuffix, ::getpid());
  if (Status written = write_new(temporary, bytes, flush); !written) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return io_error(path, "replacing", error);
  }
  if (flush == Flush::kLater) return {};
  return sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

Status sync_folder(const std::filesystem::path& folder) {
  Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0) return io_error(folder, "opening", errno);
  // Some network file systems cannot flush a folder and say EINVAL; their renames are durable by themselves.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) return io_error(folder, "flushing", errno);
  return {};
}

Status make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return io_error(folder, "creating folder", error.value());
  return {};
}

}  // namespace mbb
