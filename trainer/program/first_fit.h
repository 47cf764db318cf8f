// Places of buffers in one range of bytes: the largest first, each at the lowest offset where it meets nobody that is
// alive when it is.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/program/buffer_lives.h"

namespace mbb::trainer {

struct Fit {
  int64_t bytes = 0;
  const BufferLife* life = nullptr;  // of `families`
  int64_t offset = 0;                // what is found
};

// Places all from `start` on and returns where they end. What is always alive lies together at the bottom. Offsets are
// multiples of MemoryPlan::kAlign from `start`; of equal sizes the first is placed first.
//
// As if every buffer's search went over all that were placed before it; it begins higher where a search before it has
// shown that nothing of its size and family fits lower, so that programs of thousands of layers take seconds.
int64_t first_fit(const CallSets& sets, const LifeFamilies& families, int64_t start, std::vector<Fit>& fits);

}  // namespace mbb::trainer
