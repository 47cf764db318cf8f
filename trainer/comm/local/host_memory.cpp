// Host memory: what is copied or summed is complete at once.
#include <cstring>

#include "trainer/comm/local/reduce.h"
#include "trainer/comm/rank_memory.h"

namespace mbb::trainer {
namespace {

class HostMemory final : public RankMemory {
 public:
  Status settle() override { return {}; }
  Status copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                size_t begin, size_t end) override {
    reduce_elements(dtype, op, inputs, outputs, begin, end);
    return {};
  }
};

}  // namespace

RankMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace mbb::trainer
