// Copies of quantized values that nothing reads are not made.
//
// A quantizing op makes a value's codes and their transpose (with scales of their own where they are of blocks). Which
// of them is read follows from all passes: a gather that is made again in the backward feeds fprop once and wgrad once,
// a frozen weight's input has no wgrad, a value that is recomputed is quantized twice.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

bool has_unread_copies(const Program& program);
// After every pass that changes who reads what, before memory is planned.
void leave_out_unread_copies(Program& program);

}  // namespace mbb::trainer
