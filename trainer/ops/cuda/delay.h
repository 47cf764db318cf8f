// A kernel that does nothing for a while.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// One thread spins until `ns` of the device's clock have passed.
Status spin(int64_t ns, const Launch& launch);

}  // namespace mbb::trainer::cuda
