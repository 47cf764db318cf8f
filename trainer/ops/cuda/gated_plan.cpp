// Launch plan of products with SwiGLU in their epilogue.
#include <algorithm>

#include "trainer/ops/cuda/grouped_tiles.h"

namespace mbb::trainer::cuda {

KernelPlan plan_gated(bool forward, const GatedGemm& s, Sms sms) {
  KernelPlan plan;
  plan.kernel = forward ? "gated_forward" : "gated_backward";
  plan.block = kGroupedThreads;
  // Stages begin at a multiple of 1024; a pair of barriers a stage follows them.
  plan.smem_bytes = 1024 + kGroupedStages * (kGroupedStageBytes + 16);
  const int64_t tiles = grouped_tiles(s.tokens, forward ? 2 * s.ffn : s.ffn);
  plan.grid_x = std::max<int64_t>(1, std::min<int64_t>(tiles, sms.count - sms.margin));
  // Forward: input, both matrices of the weight, gates, ups and what they give; backward: a weight, its input, gates
  // and ups, and the gradients of both.
  const int64_t columns = forward ? 3 * s.ffn : 4 * s.ffn, weight = s.hidden * s.ffn * (forward ? 2 : 1);
  plan.bytes = 2 * (s.tokens * (s.hidden + columns) + weight);
  return plan;
}

}  // namespace mbb::trainer::cuda
