// The reductions of CPU ranks: element by element, over members in group order, rounding once.
#pragma once

#include <cstddef>
#include <span>

#include "trainer/comm/communicator.h"

namespace mbb::trainer {

// For every i in [begin, end): the reduction of inputs[0][i], inputs[1][i], ... is written to every outputs[k][i].
// Element i of an output may be element i of an input (in place). f32 and bf16 sums accumulate in f64 and round once to
// nearest even; integer sums wrap; a maximum is the first of equal members and NaN if any member is NaN. The dtype must
// be one that can_reduce() accepts.
void reduce_elements(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                     size_t begin, size_t end);

}  // namespace mbb::trainer
