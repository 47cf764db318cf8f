// The last steps of every build: who lives how long, which outputs take their input's bytes, how many ring slots.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// Sets the scope of tensors that cross calls (kMicroBatch), lets in-place ops write over inputs nobody reads again, and
// sizes each ring by walking the schedule: the widest window of micro-batches in which the value is alive. Call once,
// after the last pass and with the schedule in place. A tensor that crosses calls outside micro-batches and was not
// marked kStep or kPersistent is a bug.
void finish_program(Program& program);

}  // namespace mbb::trainer
