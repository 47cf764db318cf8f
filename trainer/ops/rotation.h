// What the ops that turn elements with their position share.
#pragma once

#include <vector>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// Angle per position of each pair of `dim` elements.
std::vector<double> frequencies_of(const Rotation& rotation, int dim);

// Refuses what does not turn inside parts of `part` elements of x [s, b, ..], or reads starts that are not there.
Status check_rotation(const Rotation& rotation, int part, const Tensor& x, bool starts);

}  // namespace mbb::trainer
