// Pipeline schedules: the order in which a stage runs the forwards and backwards of its chunks' micro-batches.
#pragma once

#include <span>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// The segments of one model chunk of a stage.
struct ChunkSegments {
  int forward = 0;
  int backward = 0;
};

// 1F1B: min(stages - stage - 1, m) warm-up forwards, then one forward and one backward in turn, then what is left.
std::vector<Call> one_f_one_b(int stage, int stages, int micro_batches, const ChunkSegments& chunk);

// Interleaved 1F1B over several chunks a stage, in the order of their places in the model: micro-batches go in groups,
// and a group passes chunk after chunk. Warm-up is 2·(stages - stage - 1) + (chunks - 1)·group forwards, as many as one
// needs and again as many to send ahead. `group` is at least `stages`, and so is what is left in the last group.
std::vector<Call> interleaved(int stage, int stages, int micro_batches, int group,
                              std::span<const ChunkSegments> chunks);

}  // namespace mbb::trainer
