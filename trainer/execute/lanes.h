// Which ops of a walk must wait for which, when the streams of a program run side by side: ops of one stream keep their
// order; an op of another stream is waited for where both touch the same bytes and one writes them.
//
// Bytes, not tensors: a buffer that the memory plan uses twice, a view, a bucket and its pieces all order themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

struct Access {
  int64_t begin = 0, end = 0;  // addresses
  bool write = false;
};

struct LaneOp {
  Stream stream = Stream::kCompute;
  std::vector<Access> accesses;
};

struct LanePlan {
  std::vector<std::vector<int>> waits;  // [op]: ops of other streams, at most one a stream, the latest that matters
  std::vector<bool> signals;            // [op]: another op waits for its end
  std::vector<bool> beside;             // [op]: work of another stream that nobody waited for may still run beside it
  bool parallel = false;                // more than one stream
};

LanePlan plan_lanes(std::span<const LaneOp> ops);

}  // namespace mbb::trainer
