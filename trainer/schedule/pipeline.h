// Pipeline schedules: the order in which a stage runs the forwards and backwards of its micro-batches.
#pragma once

#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// 1F1B: min(stages - stage - 1, m) warm-up forwards, then one forward and one backward in turn, then what is left.
std::vector<Call> one_f_one_b(int stage, int stages, int micro_batches, int forward_segment, int backward_segment);

}  // namespace mbb::trainer
