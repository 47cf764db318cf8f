// FP8 state: delayed scaling's amax, history and scales, and parameters kept in FP8. Scales follow
// trainer/precision/scales.h; `scales` of a quantized tensor are f32 {inverse scale, amax}.
#pragma once

#include <span>

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// amax[i] = scales_i[1], or with `accumulate` the larger of the two; a NaN once seen stays.
Status amax_record(std::span<const float* const> scales, float* amax, bool accumulate, const Launch& launch);
// Row (step mod length) of history [length, count] becomes amax; scale[i] from the largest of column i, or the newest.
Status scale_update(const ScaleUpdateAttrs& attrs, const float* amax, const float* record, int64_t length,
                    int64_t count, float* history, float* scale, const Launch& launch);
// out[0] = the sum of all elements, in order.
struct Doubles {
  const double* data = nullptr;
  int64_t count = 0;
};
Status scalar_sum(std::span<const Doubles> in, double* out, const Launch& launch);

// t [cols, rows] = q [rows, cols] transposed, bytes.
Status transpose_bytes(RowShape shape, const void* q, void* t, const Launch& launch);
// Of master weights rounded to bf16: *amax raised to the largest magnitude; the caller zeroes it.
Status master_amax(const float* master, int64_t count, float* amax, const Launch& launch);
// q = FP8 of the rounded master times the scale that is given, or follows from amax; scales = {inverse scale, amax}.
Status master_quantize(Element to, const float* master, int64_t count, const float* amax, const float* given, void* q,
                       float* scales, const Launch& launch);

}  // namespace mbb::trainer::cuda
