// The fusion pass: pairs of ops that one kernel does with fewer bytes.
//
// Runs after precision, before buckets, schedule and scopes. It looks at patterns only, so that it leaves alone what a
// collective stands between.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// A residual sum whose branch is a GEMM's output that nothing else reads moves into the GEMM; one whose part is the
// gradient a norm gives back moves into the norm's backward.
void fuse_residuals(Program& program, int forward, int backward);

// SwiGLU moves into the GEMM whose output it reads, and its gradient into the one that gives it its own, where nothing
// stands between.
void fuse_swiglu(Program& program, int forward, int backward);

// Cross entropy over the whole vocabulary in one op of the forward: two passes over the logits become the loss's sums
// and, in place, the gradient.
void fuse_cross_entropy(Program& program, int forward, int backward);

// The bias before an activation moves into it, and into its backward.
void fuse_bias_activation(Program& program, int forward, int backward);

// Bias, dropout and the residual sum behind them become one op of the forward; their gradients read none of its values.
void fuse_bias_dropout(Program& program, int forward, int backward);

// The opposite of a fusion: weight-gradient GEMMs write a product of their own in the operands' type, which is then
// stored or added to the main gradient.
void split_gradient_accumulation(Program& program, int backward);

}  // namespace mbb::trainer
