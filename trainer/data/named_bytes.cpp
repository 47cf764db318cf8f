// Mapping a file with mmap.
#include "trainer/data/named_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mbb::trainer {

Result<NamedBytes> map_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("opening {}: {}", path, std::strerror(errno)));
  struct stat info {};
  const bool stated = ::fstat(file, &info) == 0;
  if (!stated || !S_ISREG(info.st_mode)) {
    ::close(file);
    return fail(ErrorCode::kBadFile, fmt::format("{} is no regular file", path));
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) {
    ::close(file);
    return NamedBytes{path, {}, nullptr};
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  ::close(file);
  if (data == MAP_FAILED)
    return fail(ErrorCode::kIo, fmt::format("mapping {} ({} bytes): {}", path, size, std::strerror(error)));
  return NamedBytes{path,
                    {static_cast<const char*>(data), size},
                    std::shared_ptr<const void>(data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); })};
}

}  // namespace mbb::trainer
