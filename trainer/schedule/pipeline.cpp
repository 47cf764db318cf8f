// 1F1B (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021).
#include "trainer/schedule/pipeline.h"

#include <algorithm>

namespace mbb::trainer {

std::vector<Call> one_f_one_b(int stage, int stages, int micro_batches, int forward_segment, int backward_segment) {
  std::vector<Call> calls;
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  int forward = 0;
  for (; forward < warm_up; ++forward) calls.push_back({forward_segment, forward});
  for (int backward = 0; backward < micro_batches; ++backward) {
    if (forward < micro_batches) calls.push_back({forward_segment, forward++});
    calls.push_back({backward_segment, backward});
  }
  return calls;
}

}  // namespace mbb::trainer
