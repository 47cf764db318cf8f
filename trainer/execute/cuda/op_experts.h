// What products of experts share: where rows lie, one expert's alone among them.
#pragma once

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/expert_kernels.h"

namespace mbb::trainer::cuda {

// Experts and segments of `g`; of an expert's product alone those where the others have no rows. The first expert's
// clears what the others' leave.
Status place_experts(const OpCall& call, const GroupedGemmAttrs& a, const Operand& segments, GroupedGemm& g);

// Whether a weight gradient is on top of what is there.
inline bool adds(const GroupedGemmAttrs& a) {
  return a.accumulate || a.only > 0;
}

}  // namespace mbb::trainer::cuda
