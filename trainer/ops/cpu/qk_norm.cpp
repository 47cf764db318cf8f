// RMS norm of query and key heads on the CPU.
#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_qk_norm(const CpuCall& call) {
  const auto& a = call.attrs<QkNormAttrs>();
  const ReadF32 x(call.in[0]);
  const ReadF32 query_weight(call.in[1]);
  const ReadF32 key_weight(call.in[2]);
  WriteF32 y(call.out[0]);
  WriteF32 inverse(call.out[1]);
  const int64_t width = call.in[0].tensor->shape.cols();
  const int64_t d = a.head_dim;
  const int64_t normed = a.heads + a.kv_heads;
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r) {
    for (int64_t head = 0; head < normed; ++head) {
      const int64_t at = r * width + head * d;
      const ReadF32& w = head < a.heads ? query_weight : key_weight;
      double squares = 0;
      for (int64_t i = 0; i < d; ++i) squares += static_cast<double>(x[at + i]) * static_cast<double>(x[at + i]);
      const double inv = 1.0 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(a.eps));
      inverse[r * normed + head] = static_cast<float>(inv);
      for (int64_t i = 0; i < d; ++i)
        y[at + i] = static_cast<float>(static_cast<double>(x[at + i]) * inv * static_cast<double>(w[i]));
    }
    for (int64_t i = normed * d; i < width; ++i) y[r * width + i] = x[r * width + i];
  }
  return {};
}

Status cpu_qk_norm_grad(const CpuCall& call) {
  const auto& a = call.attrs<QkNormAttrs>();
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  const ReadF32 query_weight(call.in[2]);
  const ReadF32 key_weight(call.in[3]);
  const ReadF32 inverse(call.in[4]);
  const int64_t width = call.in[1].tensor->shape.cols();
  const int64_t d = a.head_dim;
  const int64_t normed = a.heads + a.kv_heads;
  std::vector<double> query_grad(static_cast<size_t>(d), 0.0);
  std::vector<double> key_grad(static_cast<size_t>(d), 0.0);
  WriteF32 dx(call.out[2]);
  for (int64_t r = 0; r < call.in[1].tensor->shape.rows(); ++r) {
    for (int64_t head = 0; head < normed; ++head) {
      const int64_t at = r * width + head * d;
      const ReadF32& w = head < a.heads ? query_weight : key_weight;
      std::vector<double>& weight_grad = head < a.heads ? query_grad : key_grad;
      const double inv = static_cast<double>(inverse[r * normed + head]);
      double dot = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double xhat = static_cast<double>(x[at + i]) * inv;
        dot += static_cast<double>(dy[at + i]) * static_cast<double>(w[i]) * xhat;
        weight_grad[static_cast<size_t>(i)] += static_cast<double>(dy[at + i]) * xhat;
      }
      const double mean = dot / static_cast<double>(d);
      for (int64_t i = 0; i < d; ++i) {
        const double xhat = static_cast<double>(x[at + i]) * inv;
        dx[at + i] =
            static_cast<float>(inv * (static_cast<double>(dy[at + i]) * static_cast<double>(w[i]) - xhat * mean));
      }
    }
    for (int64_t i = normed * d; i < width; ++i) dx[r * width + i] = dy[r * width + i];
  }
  WriteF32 dq(call.out[0], a.accumulate);
  WriteF32 dk(call.out[1], a.accumulate);
  for (int64_t i = 0; i < d; ++i) {
    dq[i] = static_cast<float>((a.accumulate ? static_cast<double>(dq[i]) : 0.0) + query_grad[static_cast<size_t>(i)]);
    dk[i] = static_cast<float>((a.accumulate ? static_cast<double>(dk[i]) : 0.0) + key_grad[static_cast<size_t>(i)]);
  }
  return {};
}

}  // namespace mbb::trainer
