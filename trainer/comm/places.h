// Where each rank of a world stands: the op it is at, the count of its calls, and a sign of life. Reports of failures
// and hangs read it; kept in a file, it can be read after its process was killed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer {

class Places {
 public:
  // With a path, the places lie in that file (made anew), mapped. Errors: kIo.
  static Result<std::unique_ptr<Places>> create(int ranks, const std::string& file = {});
  ~Places();
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  // `path` is copied, because whoever reads it may do so after the rank has unwound and freed its program. One thread a
  // rank writes; any thread reads. Costs tens of nanoseconds.
  void at(int rank, std::string_view path, uint64_t call);
  void alive(int rank);
  uint64_t life(int rank) const;
  // As another process told it.
  void set(int rank, std::string_view path, uint64_t call, uint64_t life);

  struct Place {
    std::string path;
    uint64_t call = 0;
  };
  Place place(int rank) const;
  // "rank 2 at layers.3.mlp.fc1.fwd (call 7)"
  std::string text(int rank) const;

 private:
  struct Slot;
  struct alignas(64) Guard {
    mutable std::mutex mutex;
  };
  Places(int ranks, Slot* slots, size_t bytes);

  std::vector<Guard> ranks_;  // a lock for each slot
  Slot* slots_;
  size_t bytes_;

  friend Result<std::string> read_places(const std::string& file);
};

// "rank 0 at a.fwd (call 3); rank 1 at b.fwd (call 4)" from the file of a process that has ended; ranks beyond 64 are
// counted. kBadFile when it is no such file.
Result<std::string> read_places(const std::string& file);

}  // namespace mbb::trainer
