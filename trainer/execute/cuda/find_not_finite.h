// Whether an op's output holds a value that is neither finite nor what an arena nobody wrote reads as
// (debug.nan_trace).
#pragma once

#include "trainer/execute/cuda/op_call.h"

namespace mbb::trainer::cuda {

// fp32, fp64 and bf16 are looked at; integers and FP8 formats, whose quantizers saturate, are finite. Waits for the
// device's stream.
Result<bool> all_finite(const Operand& operand, Device& device);

}  // namespace mbb::trainer::cuda
