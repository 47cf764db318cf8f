// Kernels on rows of (token, expert) pairs and on the plans of their exchange. Layouts are those of
// trainer/ops/token_rows.cpp and experts.cpp.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// E4M3 [rows, cols] and the inverse scale of every kTokenBlock elements of a row, fp32 [rows, ⌈cols/kTokenBlock⌉].
Status quantize_tokens(Element element, RowShape shape, const void* x, uint8_t* q, float* inverse,
                       const Launch& launch);
Status dequantize_tokens(Element element, RowShape shape, const uint8_t* q, const float* inverse, void* x,
                         const Launch& launch);

// segments i32 [2, pieces] from counts i32 [pieces], by member, source and expert.
Status receive_plan(const ReceiveAttrs& attrs, int64_t pieces, const int32_t* counts, int32_t* segments,
                    const Launch& launch);

}  // namespace mbb::trainer::cuda
