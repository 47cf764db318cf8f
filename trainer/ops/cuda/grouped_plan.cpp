// Launch plan of grouped matrix products.
#include <algorithm>

#include "trainer/ops/cuda/grouped_tiles.h"

namespace mbb::trainer::cuda {

const char* name(GroupedForm form) {
  switch (form) {
    case GroupedForm::kFprop: return "grouped_fprop";
    case GroupedForm::kDgrad: return "grouped_dgrad";
    case GroupedForm::kWgrad: return "grouped_wgrad";
  }
  return "?";
}

KernelPlan plan_grouped(GroupedForm form, int64_t rows, int64_t experts, int64_t n, int64_t k, Sms sms) {
  KernelPlan plan;
  plan.kernel = name(form);
  plan.block = kGroupedThreads;
  // Stages begin at a multiple of 1024; a pair of barriers a stage follows them.
  plan.smem_bytes = 1024 + kGroupedStages * (kGroupedStageBytes + 16);
  const int64_t columns = form == GroupedForm::kFprop ? n : k;
  // Every expert may end with a part of a tile.
  const int64_t most = form == GroupedForm::kWgrad
                           ? experts * grouped_tiles(n, k)
                           : (rows / kGroupedRows + experts) * grouped_tiles(kGroupedRows, columns);
  plan.grid_x = std::max<int64_t>(1, std::min<int64_t>(most, sms.count));
  const int64_t weights = experts * n * k;
  plan.bytes = 2 * rows * (n + k) + weights * (form == GroupedForm::kWgrad ? 4 : 2);
  return plan;
}

}  // namespace mbb::trainer::cuda
