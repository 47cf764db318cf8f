// Work that never changes, done beside each step: what a shared core slows down, it slows down too.
#pragma once

#include <cstdint>

namespace mbb::trainer {

// Multiplies small fp32 matrices in a loop of its own, apart from the product's kernels, so that a slower kernel does
// not slow it as well; about 1 ms. Returns the calling thread's CPU time of it, in ns.
int64_t reference_work_ns();

}  // namespace mbb::trainer
