// Kernels that a program asks for only to be disturbed: one that does nothing for a while, one that ends the device's
// context.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// One thread spins until `ns` of the device's clock have passed.
Status spin(int64_t ns, const Launch& launch);
// Traps: every later call of this process on the device fails.
Status trap(const Launch& launch);

}  // namespace mbb::trainer::cuda
