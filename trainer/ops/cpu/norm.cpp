// RMSNorm on the CPU.
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_rmsnorm(const CpuCall& call) {
  const double eps = static_cast<double>(call.attrs<NormAttrs>().eps);
  const ReadF32 x(call.in[0]);
  const ReadF32 w(call.in[1]);
  WriteF32 y(call.out[0]);
  WriteF32 inverse(call.out[1]);
  const int64_t rows = call.in[0].tensor->shape.rows();
  const int64_t h = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < h; ++i) squares += static_cast<double>(x[r * h + i]) * static_cast<double>(x[r * h + i]);
    const double inv = 1.0 / std::sqrt(squares / static_cast<double>(h) + eps);
    inverse[r] = static_cast<float>(inv);
    for (int64_t i = 0; i < h; ++i)
      y[r * h + i] = static_cast<float>(static_cast<double>(x[r * h + i]) * inv * static_cast<double>(w[i]));
  }
  return {};
}

// dx = inv · (w·dy − x̂ · mean(w·dy·x̂)), dw = Σ rows dy·x̂, with x̂ = x·inv.
Status cpu_rmsnorm_grad(const CpuCall& call) {
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  const ReadF32 w(call.in[2]);
  const ReadF32 inverse(call.in[3]);
  const bool accumulate = call.attrs<NormAttrs>().accumulate;
  WriteF32 dw(call.out[0], accumulate);
  WriteF32 dx(call.out[1]);
  const int64_t rows = call.in[1].tensor->shape.rows();
  const int64_t h = call.in[1].tensor->shape.cols();
  std::vector<double> weight_grad(static_cast<size_t>(h), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const double inv = static_cast<double>(inverse[r]);
    double dot = 0;
    for (int64_t i = 0; i < h; ++i) {
      const double xhat = static_cast<double>(x[r * h + i]) * inv;
      dot += static_cast<double>(dy[r * h + i]) * static_cast<double>(w[i]) * xhat;
      weight_grad[static_cast<size_t>(i)] += static_cast<double>(dy[r * h + i]) * xhat;
    }
    const double mean = dot / static_cast<double>(h);
    for (int64_t i = 0; i < h; ++i) {
      const double xhat = static_cast<double>(x[r * h + i]) * inv;
      dx[r * h + i] =
          static_cast<float>(inv * (static_cast<double>(dy[r * h + i]) * static_cast<double>(w[i]) - xhat * mean));
    }
  }
  for (int64_t i = 0; i < h; ++i)
    dw[i] = static_cast<float>((accumulate ? static_cast<double>(dw[i]) : 0.0) + weight_grad[static_cast<size_t>(i)]);
  return {};
}

}  // namespace mbb::trainer
