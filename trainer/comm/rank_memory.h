// Where the buffers of rank threads lie, and how a rank copies and sums them.
//
// A rank's own memory is used by its thread alone, between the meetings of a collective: it may read and write the
// buffers of all ranks of the process then.
#pragma once

#include <cstddef>
#include <span>

#include "trainer/comm/communicator.h"

namespace mbb::trainer {

class RankMemory {
 public:
  virtual ~RankMemory() = default;
  // What this rank has begun on its buffers is complete when it returns.
  virtual Status settle() = 0;
  // Either side may be host memory. Complete after settle().
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  // Elements [begin, end) of every output are the reduction of those of the inputs, in their order, rounded once
  // (communicator.h). Complete after settle().
  virtual Status reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                        size_t begin, size_t end) = 0;
};

// This process's memory.
RankMemory& host_memory();

}  // namespace mbb::trainer
