// Experts whose rows arrived in several pieces, one from each source: the pieces are put together, the op of one piece
// an expert runs, and its rows go back where the pieces lie.
#pragma once

#include <initializer_list>

#include "trainer/execute/cuda/op_call.h"

namespace mbb::trainer::cuda {

// `experts` as GroupedGemmAttrs has it.
inline bool in_pieces(int64_t experts, const Operand& segments) {
  return experts > 0 && experts != segments.shape()[1];
}

// Calls `function` on operands `rows` put together and segments (operand `segments`) of one piece an expert; with
// `rows_out` the first output has rows, too. Operands may differ in columns only.
Status by_expert(const OpCall& call, OpFunction function, int64_t experts, std::initializer_list<size_t> rows,
                 size_t segments, bool rows_out);

}  // namespace mbb::trainer::cuda
