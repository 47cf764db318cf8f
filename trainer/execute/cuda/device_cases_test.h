// Op cases that a device is held against the oracle with: those of the records, and shapes that its kernels and
// libraries treat apart.
#pragma once

#include <vector>

#include "trainer/ops/op_case.h"

namespace mbb::trainer::cuda {

std::vector<OpCase> device_cases();

// What the device does not compute, with a part of what it says of it.
struct RefusedCase {
  OpCase op_case;
  const char* says;
};
std::vector<RefusedCase> refused_cases();

}  // namespace mbb::trainer::cuda
