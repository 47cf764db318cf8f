// Parameters that stay FP8 after the optimizer step (fp8_param): what is quantized once a step by the forward is
// written quantized by the optimizer instead, so that weights take one byte and data-parallel gathers move it.
//
// Runs after the precision pass, before buckets. A weight that only the recipe reads becomes E4M3, with its inverse
// scale and amax beside it (Tensor::scales); of its quantization a transpose is left. The optimizer writes the same
// bits: the master rounded to bf16, then quantized with the scale of the whole tensor. A frozen weight never changes:
// it is made so, with the scale of its own largest magnitude in every recipe.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// For tensorwise recipes.
void keep_weights_in_fp8(Program& program);

}  // namespace mbb::trainer
