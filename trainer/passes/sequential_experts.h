// moe_grouped_gemm = off: the matrix products of a rank's experts one after the other instead of in one op.
//
// Runs where forward and backward segments are built and buckets, schedule and scopes are not. An op "….fc1.fwd"
// becomes "….fc1.fwd.expert0", "….expert1", …: the first clears the output, each next one adds its expert's rows.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

void run_experts_in_turn(Program& program, int segment);

}  // namespace mbb::trainer
