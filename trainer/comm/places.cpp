// Slots of plain bytes, in memory of their own or in a mapped file.
#include "trainer/comm/places.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "profiler/base/file.h"

namespace mbb::trainer {
namespace {

constexpr size_t kPathBytes = 192;
constexpr size_t kMostListed = 64;

std::string describe_place(size_t rank, std::string_view path, uint64_t call) {
  if (path.empty()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} at {} (call {})", rank, path, call);
}

}  // namespace

struct alignas(64) Places::Slot {
  std::atomic<uint64_t> life;  // written by the rank alone
  uint64_t call;
  uint32_t path_length;
  char path[kPathBytes];
};

Places::Places(int ranks, Slot* slots, size_t bytes)
    : ranks_(static_cast<size_t>(ranks)), slots_(slots), bytes_(bytes) {}

Places::~Places() {
  munmap(slots_, bytes_);
}

Result<std::unique_ptr<Places>> Places::create(int ranks, const std::string& file) {
  const size_t bytes = sizeof(Slot) * static_cast<size_t>(ranks);
  const auto refused = [&](const char* what) {
    return fail(ErrorCode::kIo, fmt::format("{} for the places of {} ranks{}{}: {}", what, ranks,
                                            file.empty() ? "" : " in ", file, std::strerror(errno)));
  };
  int descriptor = -1;
  if (!file.empty()) {
    descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) return refused("opening the file");
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
      auto error = refused("making room");
      close(descriptor);
      return error;
    }
  }
  const int flags = file.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (descriptor >= 0) close(descriptor);
  if (memory == MAP_FAILED) return refused("no memory");
  return std::unique_ptr<Places>(new Places(ranks, static_cast<Slot*>(memory), bytes));
}

void Places::at(int rank, std::string_view path, uint64_t call) {
  Slot& slot = slots_[rank];
  {
    const std::lock_guard<std::mutex> guard(ranks_[static_cast<size_t>(rank)].mutex);
    slot.path_length = static_cast<uint32_t>(path.copy(slot.path, kPathBytes));
    slot.call = call;
  }
  alive(rank);
}

void Places::alive(int rank) {
  std::atomic<uint64_t>& life = slots_[rank].life;
  life.store(life.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

uint64_t Places::life(int rank) const {
  return slots_[rank].life.load(std::memory_order_relaxed);
}

void Places::set(int rank, std::string_view path, uint64_t call, uint64_t life) {
  at(rank, path, call);
  slots_[rank].life.store(life, std::memory_order_relaxed);
}

Places::Place Places::place(int rank) const {
  const Slot& slot = slots_[rank];
  const std::lock_guard<std::mutex> guard(ranks_[static_cast<size_t>(rank)].mutex);
  return {std::string(slot.path, slot.path_length), slot.call};
}

std::string Places::text(int rank) const {
  const Place at = place(rank);
  return describe_place(static_cast<size_t>(rank), at.path, at.call);
}

Result<std::string> read_places(const std::string& file) {
  MB_ASSIGN(const std::string bytes, read_file(file));
  if (bytes.empty() || bytes.size() % sizeof(Places::Slot) != 0)
    return fail(ErrorCode::kBadFile, fmt::format("{} does not hold the places of ranks", file));
  const size_t ranks = bytes.size() / sizeof(Places::Slot);
  std::string text;
  for (size_t rank = 0; rank < std::min(ranks, kMostListed); ++rank) {
    const char* const slot = bytes.data() + rank * sizeof(Places::Slot);
    uint64_t call = 0;
    uint32_t length = 0;
    std::memcpy(&call, slot + offsetof(Places::Slot, call), sizeof call);
    std::memcpy(&length, slot + offsetof(Places::Slot, path_length), sizeof length);
    const size_t most = std::min<size_t>(length, kPathBytes);
    if (rank > 0) text += "; ";
    text += describe_place(rank, {slot + offsetof(Places::Slot, path), most}, call);
  }
  if (ranks > kMostListed) text += fmt::format("; and {} more ranks", ranks - kMostListed);
  return text;
}

}  // namespace mbb::trainer
