// The precision pass: the linear layers of Transformer blocks read operands of the recipe's number format.
//
// Runs on segments whose ops are built and whose schedule, buckets and scopes are not. Which GEMMs, in which layers and
// with which copies is decided here; what an operand becomes is the recipe's (precision_recipe.h). Fprop is X·Wᵀ, dgrad
// dY·(Wᵀ)ᵀ, wgrad dYᵀ·(Xᵀ)ᵀ: both operands have their inner dimension last, the only form Hopper has. A weight is
// quantized once a step, or where it is gathered. LM head, attention core, norms, router and embedding stay as they
// are.
#pragma once

#include <memory>

#include "profiler/base/error.h"
#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

class RecipeOps;

class PrecisionPass {
 public:
  // Does nothing for the recipes fp32 and bf16.
  PrecisionPass(Program& program, const Layout& layout);
  ~PrecisionPass();
  PrecisionPass(const PrecisionPass&) = delete;
  PrecisionPass& operator=(const PrecisionPass&) = delete;

  // The two segments of a chunk.
  void run(int forward, int backward);
  // Adds to the builder's segment what the recipe does once a step, after the last micro-batch and before the
  // optimizer, which writes FP8 weights with the new scales: its states' only writers.
  void once_a_step(Builder& builder);

 private:
  Program& program_;
  const Layout& layout_;
  std::unique_ptr<RecipeOps> recipe_;
};

// The place of an op among the layers of its stack, or -1 where it belongs to no Transformer block.
int64_t block_layer(std::string_view path);

// Whether every quantized tensor divides into the recipe's blocks; those of 128 with fp32 scales need sides in sixteens
// only, as their last one may be partial. Errors (kBadArgument) name the op, its shape and the
// knobs.
Status check_block_shapes(const Program& program);
// What a GPU's kernels of tensorwise FP8 do not quantize; the error names the op, its shape and what to change.
Status check_fp8_rows(const Program& program);

}  // namespace mbb::trainer
