// In which types AdamW keeps a bucket's master weights and moments.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

struct StateForms {
  MasterForm master = MasterForm::kNone;
  DType exp_avg = DType::kF32;
  DType exp_avg_sq = DType::kF32;

  bool scaled() const { return needs_scale(exp_avg) || needs_scale(exp_avg_sq) || master == MasterForm::kScaled; }
  int64_t scale_rows() const { return master == MasterForm::kScaled ? 3 : 2; }
  static bool needs_scale(DType dtype) { return dtype != DType::kF32 && dtype != DType::kBf16; }
};

// `weights` is the type of the bucket's weights.
inline StateForms state_forms(const Layout& layout, DType weights) {
  const OptimizerConfig& o = layout.config.optimizer;
  const auto type = [](StateType state, DType fp8) {
    return state == StateType::kFp32   ? DType::kF32
           : state == StateType::kBf16 ? DType::kBf16
           : state == StateType::kFp16 ? DType::kF16
                                       : fp8;
  };
  StateForms forms;
  // E5M2 for squares, whose magnitudes spread twice as far.
  forms.exp_avg = type(o.exp_avg_dtype, DType::kE4M3);
  forms.exp_avg_sq = type(o.exp_avg_sq_dtype, DType::kE5M2);
  if (weights == DType::kF32) return forms;
  forms.master = !o.use_precision_aware_optimizer || weights != DType::kBf16 ? MasterForm::kState
                 : o.main_params_dtype == StateType::kBf16                   ? MasterForm::kStochastic
                 : o.main_params_dtype == StateType::kFp16                   ? MasterForm::kScaled
                                                                             : MasterForm::kRemainder;
  return forms;
}

}  // namespace mbb::trainer
