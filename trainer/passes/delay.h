// A planted regression for tests of the gate (`debug.delay_us`).
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// Puts an op `debug.delay` of `ns` at the head of the optimizer segment: once a step, on the compute stream. What the
// step computes stays as it was, bit for bit.
void plant_delay(Program& program, int64_t ns);

}  // namespace mbb::trainer
