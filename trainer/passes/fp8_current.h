// The precision pass of tensorwise FP8 with current scaling: the linear layers of the blocks read FP8 operands.
//
// Runs on a program whose forward and backward segments are built and whose schedule, buckets and scopes are not. In
// each linear layer below "layers.": the input and weight become E4M3, the output gradient E5M2 (NUMERICS.md 3); fprop
// accumulates fast, dgrad and wgrad do not. A norm or SwiGLU whose only readers are such layers is replaced by its
// quantizing form, so that its bf16 value never exists. A weight is quantized once a step. LM head, attention core,
// norms and embedding stay as they are.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

void to_fp8_current(Program& program, int forward, int backward);

}  // namespace mbb::trainer
