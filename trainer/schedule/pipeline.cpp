// 1F1B (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021) and its interleaved form (Narayanan
// et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021).
#include "trainer/schedule/pipeline.h"

#include <algorithm>

namespace mbb::trainer {
namespace {

struct Turn {
  int chunk = 0;
  int micro_batch = 0;
};

// Forward turns: a group of micro-batches through all chunks, then the next group. Backwards take the same turns with
// the chunks from last to first.
std::vector<Turn> turns_of(int micro_batches, int group, int chunks) {
  std::vector<Turn> turns;
  for (int first = 0; first < micro_batches; first += group)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int m = first; m < std::min(first + group, micro_batches); ++m) turns.push_back({chunk, m});
  return turns;
}

}  // namespace

std::vector<Call> one_f_one_b(int stage, int stages, int micro_batches, const ChunkSegments& chunk) {
  std::vector<Call> calls;
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  int forward = 0;
  for (; forward < warm_up; ++forward) calls.push_back({chunk.forward, forward});
  for (int backward = 0; backward < micro_batches; ++backward) {
    if (forward < micro_batches) calls.push_back({chunk.forward, forward++});
    calls.push_back({chunk.backward, backward});
  }
  return calls;
}

std::vector<Call> interleaved(int stage, int stages, int micro_batches, int group,
                              std::span<const ChunkSegments> chunks) {
  const auto count = static_cast<int>(chunks.size());
  const std::vector<Turn> turns = turns_of(micro_batches, group, count);
  const auto warm_up = static_cast<size_t>(std::min<int64_t>(
      int64_t{2} * (stages - stage - 1) + int64_t{count - 1} * group, static_cast<int64_t>(turns.size())));
  std::vector<Call> calls;
  const auto forward = [&](const Turn& t) {
    calls.push_back({chunks[static_cast<size_t>(t.chunk)].forward, t.micro_batch});
  };
  for (size_t i = 0; i < warm_up; ++i) forward(turns[i]);
  for (size_t i = 0; i < turns.size(); ++i) {
    if (i + warm_up < turns.size()) forward(turns[i + warm_up]);
    calls.push_back({chunks[static_cast<size_t>(count - 1 - turns[i].chunk)].backward, turns[i].micro_batch});
  }
  return calls;
}

}  // namespace mbb::trainer
