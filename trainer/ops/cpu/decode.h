// What quantized operands mean: codes times the scales kept beside them.
#pragma once

#include <vector>

#include "trainer/ops/block_table.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// Tensorwise: q and scales {inverse scale, amax}.
std::vector<double> decode_tensorwise(const CpuOperand& q, const CpuOperand& scales);

// The table of a copy's scales.
BlockTable block_table(const CpuOperand& q, int64_t block, bool square, int64_t line_stack = 1,
                       int64_t inner_stack = 1);
// Codes in blocks, under an inverse scale of the copy.
std::vector<double> decode_blocks(const CpuOperand& q, const CpuOperand& scales, float inverse,
                                  const BlockTable& table);

}  // namespace mbb::trainer
