// GEMM on the CPU: row by row, products summed over k in order, in double, rounded once.
#include <cstring>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/cpu/product.h"

namespace mbb::trainer {
namespace {

std::vector<float> transposed(const float* x, int64_t rows, int64_t cols) {
  std::vector<float> t(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) t[static_cast<size_t>(c * rows + r)] = x[r * cols + c];
  return t;
}

}  // namespace

Status cpu_gemm(const CpuCall& call) {
  const auto& attrs = call.attrs<GemmAttrs>();
  const ReadF32 a(call.in[0]);
  const ReadF32 b(call.in[1]);
  WriteF32 c(call.out[0], attrs.accumulate);
  const Shape& sa = call.in[0].tensor->shape;
  const Shape& sb = call.in[1].tensor->shape;
  const int64_t m = attrs.trans_a ? sa.cols() : sa.rows();
  const int64_t k = attrs.trans_a ? sa.rows() : sa.cols();
  const int64_t n = attrs.trans_b ? sb.rows() : sb.cols();
  std::vector<float> bt;
  if (attrs.trans_b) bt = transposed(b.data(), n, k);
  const float* rows = attrs.trans_b ? bt.data() : b.data();
  std::vector<double> acc(static_cast<size_t>(n));
  for (int64_t i = 0; i < m; ++i) {
    std::fill(acc.begin(), acc.end(), 0.0);
    for (int64_t p = 0; p < k; ++p) {
      const float x = attrs.trans_a ? a[p * m + i] : a[i * k + p];
      add_scaled(acc.data(), rows + p * n, static_cast<double>(x), n);
    }
    for (int64_t j = 0; j < n; ++j) {
      const double before = attrs.accumulate ? static_cast<double>(c[i * n + j]) : 0.0;
      c[i * n + j] = static_cast<float>(before + acc[static_cast<size_t>(j)]);
    }
  }
  return {};
}

}  // namespace mbb::trainer
