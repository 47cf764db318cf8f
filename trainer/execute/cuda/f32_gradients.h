// Ops whose kernels write weight gradients in fp32, in programs that keep main gradients in bf16.
#pragma once

#include "trainer/execute/cuda/op_call.h"

namespace mbb::trainer::cuda {

// Calls `run` with fp32 stand-ins of the main gradients that are bf16; what they held is read, the result rounded once.
// For gradients of vectors: large ones are written in bf16 by their own kernels.
Status with_f32_gradients(const OpCall& call, OpFunction run);

// The same as an op function.
template <OpFunction kFunction>
Status f32_gradients(const OpCall& call) {
  return with_f32_gradients(call, kFunction);
}

}  // namespace mbb::trainer::cuda
