// LayerNorm on the CPU.
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_layernorm(const CpuCall& call) {
  const auto& a = call.attrs<NormAttrs>();
  const double plus = a.one_plus ? 1.0 : 0.0;
  const ReadF32 x(call.in[0]);
  const ReadF32 w(call.in[1]);
  const ReadF32 bias(call.in[2]);
  WriteF32 y(call.out[0]);
  WriteF32 statistics(call.out[1]);
  const int64_t rows = call.in[0].tensor->shape.rows();
  const int64_t h = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < h; ++i) sum += static_cast<double>(x[r * h + i]);
    const double mean = sum / static_cast<double>(h);
    double squares = 0;
    for (int64_t i = 0; i < h; ++i) squares += std::pow(static_cast<double>(x[r * h + i]) - mean, 2);
    const double inv = 1.0 / std::sqrt(squares / static_cast<double>(h) + static_cast<double>(a.eps));
    statistics[r] = static_cast<float>(mean);
    statistics[rows + r] = static_cast<float>(inv);
    for (int64_t i = 0; i < h; ++i)
      y[r * h + i] =
          static_cast<float>((static_cast<double>(x[r * h + i]) - mean) * inv * (plus + static_cast<double>(w[i])) +
                             static_cast<double>(bias[i]));
  }
  return {};
}

// With x̂ = (x − mean)·inv and g = (w or 1 + w)·dy:
// dx = inv · (g − mean(g) − x̂ · mean(g·x̂)), dw = Σ dy·x̂, db = Σ dy.
Status cpu_layernorm_grad(const CpuCall& call) {
  const auto& a = call.attrs<NormAttrs>();
  const double plus = a.one_plus ? 1.0 : 0.0;
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  const ReadF32 w(call.in[2]);
  const ReadF32 statistics(call.in[4]);
  WriteF32 dw(call.out[0], a.accumulate);
  WriteF32 db(call.out[1], a.accumulate);
  WriteF32 dx(call.out[2]);
  const int64_t rows = call.in[1].tensor->shape.rows();
  const int64_t h = call.in[1].tensor->shape.cols();
  std::vector<double> weight_grad(static_cast<size_t>(h), 0.0);
  std::vector<double> bias_grad(static_cast<size_t>(h), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = static_cast<double>(statistics[r]);
    const double inv = static_cast<double>(statistics[rows + r]);
    double sum = 0;
    double dot = 0;
    for (int64_t i = 0; i < h; ++i) {
      const double d = static_cast<double>(dy[r * h + i]);
      const double xhat = (static_cast<double>(x[r * h + i]) - mean) * inv;
      const double g = d * (plus + static_cast<double>(w[i]));
      sum += g;
      dot += g * xhat;
      weight_grad[static_cast<size_t>(i)] += d * xhat;
      bias_grad[static_cast<size_t>(i)] += d;
    }
    sum /= static_cast<double>(h);
    dot /= static_cast<double>(h);
    for (int64_t i = 0; i < h; ++i) {
      const double xhat = (static_cast<double>(x[r * h + i]) - mean) * inv;
      const double g = static_cast<double>(dy[r * h + i]) * (plus + static_cast<double>(w[i]));
      dx[r * h + i] = static_cast<float>(inv * (g - sum - xhat * dot));
    }
  }
  for (int64_t i = 0; i < h; ++i) {
    const double before_w = a.accumulate ? static_cast<double>(dw[i]) : 0.0;
    const double before_b = a.accumulate ? static_cast<double>(db[i]) : 0.0;
    dw[i] = static_cast<float>(before_w + weight_grad[static_cast<size_t>(i)]);
    db[i] = static_cast<float>(before_b + bias_grad[static_cast<size_t>(i)]);
  }
  return {};
}

}  // namespace mbb::trainer
