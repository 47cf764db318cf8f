// Device memory of a memory plan: one range of addresses that is mapped once, or a slab for each category.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/memory_plan.h"

namespace mbb::trainer::cuda {

class Arena {
 public:
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;      // of the plan
    int64_t allocated = 0;  // what the device gave for it
  };

  // On the current device, which is `device`; the first `readers` devices reach it, too, and other processes where the
  // plan says that it is registered. A range is reserved, backed
  // and mapped (cuMemAddressReserve, cuMemCreate, cuMemMap); where the driver cannot, it is allocated whole, and note()
  // says so.
  static Result<std::unique_ptr<Arena>> open(const MemoryPlan& plan, int device, int readers = 0);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Byte `offset` of the plan; `category` is that of the buffer there.
  std::byte* at(Category category, int64_t offset) const { return bases_[static_cast<size_t>(category)] + offset; }
  std::span<const Block> blocks() const { return blocks_; }
  // Allocated beyond the plan: the device gives whole pages.
  int64_t slack_bytes() const;
  bool mapped() const { return mapped_; }
  const std::string& note() const { return note_; }

 private:
  Arena() = default;
  Status map(int device, int readers, int64_t bytes);
  Status allocate(int64_t bytes);

  std::vector<Block> blocks_;
  std::array<std::byte*, kCategories> bases_{};  // so that base + offset in the plan is the address
  bool mapped_ = false;
  bool shared_ = false;            // with other processes
  unsigned long long handle_ = 0;  // of the mapped range's memory
  std::string note_;
};

}  // namespace mbb::trainer::cuda
