// What quantized operands mean: codes times the scales kept beside them.
#pragma once

#include <vector>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// Tensorwise: q and scales {inverse scale, amax}.
std::vector<double> decode_tensorwise(const CpuOperand& q, const CpuOperand& scales);

// Blocks of 1 x block along the inner dimension, or block x block when square, under an inverse scale of the copy.
std::vector<double> decode_blocks(const CpuOperand& q, const CpuOperand& scales, float inverse, int64_t block,
                                  bool square);

}  // namespace mbb::trainer
