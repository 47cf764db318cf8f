// Exchanges of expert parallelism under compute: weight gradients behind the next exchange, and the forward of one
// micro-batch between the exchanges of another one's backward.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// delay_wgrad_compute: ops of a backward segment that give nothing but weight gradients move behind the next exchange
// of tokens, or, after the last one, to the end of the segment, behind what the previous stage waits for. Runs where
// the backward is built and data parallelism is not.
void delay_weight_gradients(Program& program, int backward);

// overlap_moe_expert_parallel_comm: where the schedule calls a backward and then a forward, which never needs it, their
// op lists are merged: both are cut behind each exchange, and the pieces take turns, so that one's exchange runs under
// the other's compute. Pieces are segments of their own ("chunk0.forward.piece1"), and calls that have no partner run
// theirs in a row. Runs with the whole schedule in place, last before scopes and rings.
void pair_micro_batches(Program& program);

}  // namespace mbb::trainer
