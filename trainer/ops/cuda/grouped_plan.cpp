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

namespace {

// Persistent blocks; every expert may end with a part of a tile.
int64_t blocks_of(GroupedForm form, int64_t rows, int64_t experts, int64_t n, int64_t k, int tile_columns, Sms sms) {
  const int64_t columns = form == GroupedForm::kFprop ? n : k;
  const int64_t most = form == GroupedForm::kWgrad
                           ? experts * grouped_tiles(n, k, tile_columns)
                           : (rows / kGroupedRows + experts) * grouped_tiles(kGroupedRows, columns, tile_columns);
  return std::max<int64_t>(1, std::min<int64_t>(most, sms.count));
}

// Stages begin at a multiple of 1024; a pair of barriers a stage follows them.
int shared_of(int stages, int stage_bytes) {
  return 1024 + stages * (stage_bytes + 16);
}

}  // namespace

KernelPlan plan_grouped(GroupedForm form, int64_t rows, int64_t experts, int64_t n, int64_t k, Sms sms) {
  KernelPlan plan;
  plan.kernel = name(form);
  plan.block = kGroupedThreads;
  plan.smem_bytes = shared_of(kGroupedStages, kGroupedStageBytes);
  plan.grid_x = blocks_of(form, rows, experts, n, k, kGroupedColumns, sms);
  plan.bytes = 2 * rows * (n + k) + experts * n * k * (form == GroupedForm::kWgrad ? 4 : 2);
  return plan;
}

KernelPlan plan_grouped_fp8(GroupedForm form, bool fast, int64_t rows, int64_t experts, int64_t n, int64_t k, Sms sms) {
  KernelPlan plan;
  plan.kernel = name(form);
  plan.block = kGroupedThreads;
  plan.smem_bytes = shared_of(grouped_fp8_stages(fast), grouped_fp8_stage_bytes(fast));
  plan.grid_x = blocks_of(form, rows, experts, n, k, grouped_fp8_columns(fast), sms);
  const int64_t weights = experts * n * k;
  plan.bytes = form == GroupedForm::kWgrad   ? rows * (n + k) + weights * 4
               : form == GroupedForm::kFprop ? rows * (2 * n + k) + weights
                                             : rows * (n + 2 * k) + weights;
  return plan;
}

}  // namespace mbb::trainer::cuda
