// Pipeline messages at the ends of their calls.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// Batched messages progress together only where they follow each other in the compute stream: receives become the first
// ops of their segments and sends the last ones, whatever other passes have put before and after them. Runs after
// those.
void put_messages_at_ends(Program& program);

}  // namespace mbb::trainer
