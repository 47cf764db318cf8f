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

GroupedShare grouped_share(GroupedForm form, int64_t n, int64_t k) {
  const int64_t columns = form == GroupedForm::kFprop ? n : k;
  if (form == GroupedForm::kWgrad && n >= 4 * kGroupedRows) return GroupedShare::kRight;
  return columns >= 4 * kGroupedColumns ? GroupedShare::kLeft : GroupedShare::kNone;
}

KernelPlan plan_grouped(GroupedForm form, GroupedShare share, int64_t rows, int64_t experts, int64_t n, int64_t k,
                        Sms sms) {
  KernelPlan plan;
  plan.kernel = name(form);
  plan.block = kGroupedThreads;
  // Stages begin at a multiple of 1024; a pair of barriers a stage follows them.
  plan.smem_bytes = 1024 + kGroupedStages * (kGroupedStageBytes + 16);
  const int64_t columns = form == GroupedForm::kFprop ? n : k;
  const GroupedSpan span = grouped_span(share);
  // Every expert may end with a part of a tile.
  const int64_t most = form == GroupedForm::kWgrad
                           ? experts * grouped_tiles(n, k, span)
                           : (rows / span.rows + experts) * grouped_tiles(span.rows, columns, span);
  const int blocks = share == GroupedShare::kNone ? 1 : 2;
  plan.grid_x = blocks * std::max<int64_t>(1, std::min<int64_t>(most, sms.count / blocks));
  const int64_t weights = experts * n * k;
  plan.bytes = 2 * rows * (n + k) + weights * (form == GroupedForm::kWgrad ? 4 : 2);
  return plan;
}

}  // namespace mbb::trainer::cuda
