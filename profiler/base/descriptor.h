// An open file descriptor, and reads and writes that finish what they begin. For the few places that need more than a
// whole file (profiler/base/file.h). After a false answer errno says why; reading past the end is false too, errno 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mbb {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  int get() const { return fd_; }
  // Some file systems report a failed write at close only.
  bool close();

 private:
  int fd_;
};

// -1 and errno when it cannot be opened. O_CLOEXEC is added.
int open_retry(const char* path, int flags, unsigned mode = 0);
bool write_all(int fd, std::string_view bytes);
bool read_all_at(int fd, uint64_t offset, char* to, size_t size);

}  // namespace mbb
