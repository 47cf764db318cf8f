// The hot loop of products, compiled for the vector width of the machine that runs it. Sanitizers leave this one file
// out (mbb_wing): its callers, which they do watch, own the bounds.
#include "trainer/ops/cpu/product.h"

#define MB_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))

namespace mbb::trainer {

MB_EVERY_WIDTH void add_scaled(double* __restrict acc, const double* __restrict b, double a, int64_t n) {
  for (int64_t j = 0; j < n; ++j) acc[j] += a * b[j];
}

MB_EVERY_WIDTH void add_scaled(double* __restrict acc, const float* __restrict b, double a, int64_t n) {
  for (int64_t j = 0; j < n; ++j) acc[j] += a * static_cast<double>(b[j]);
}

}  // namespace mbb::trainer
