// The hot loop of products, compiled for the vector width of the machine that runs it.
#include "trainer/ops/cpu/product.h"

namespace mbb::trainer {

__attribute__((target_clones("avx512f", "avx2", "default"))) void add_scaled(double* __restrict acc,
                                                                             const double* __restrict b, double a,
                                                                             int64_t n) {
  for (int64_t j = 0; j < n; ++j) acc[j] += a * b[j];
}

}  // namespace mbb::trainer
