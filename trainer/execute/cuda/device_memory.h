// A device's memory as rank threads share it: copies and sums on the stream that the rank's ops use at the time.
#pragma once

#include "trainer/comm/rank_memory.h"
#include "trainer/execute/cuda/device.h"

namespace mbb::trainer::cuda {

class DeviceMemory final : public RankMemory {
 public:
  explicit DeviceMemory(Device& device) : device_(device) {}

  Status settle() override;
  Status copy(void* to, const void* from, size_t bytes) override;
  Status reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                size_t begin, size_t end) override;

 private:
  Device& device_;
};

// Lets device `device` of this thread reach the memory of the first `count` devices. Refuses (kUnavailable), naming the
// pair, where the hardware does not.
Status reach_devices(int device, int count);

}  // namespace mbb::trainer::cuda
