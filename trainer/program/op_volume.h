// What a communication op moves, by the byte rules of the communicator: the op's own shapes, one call.
#pragma once

#include "trainer/comm/communicator.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

struct CommVolume {
  CommOp op = CommOp::kBarrier;
  uint64_t algorithmic_bytes = 0;
  uint64_t wire_bytes = 0;
  uint64_t useful_bytes = 0;  // of them, what is not padding at balanced load
};

// `view` is an op whose record says `communicates`.
CommVolume comm_volume(const OpView& view);

}  // namespace mbb::trainer
