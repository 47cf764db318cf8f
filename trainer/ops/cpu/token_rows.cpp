// Rows of (token, expert) pairs on the CPU.
#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/precision/fp8.h"

namespace mbb::trainer {

Status cpu_unpermute(const CpuCall& call) {
  const ReadF32 buffer(call.in[0]);
  const int32_t* rows = ints(call.in[1]);
  WriteF32 out(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  for (int64_t i = 0; i < call.in[1].elements(); ++i)
    for (int64_t c = 0; c < h; ++c) out[i * h + c] = rows[i] < 0 ? 0.0F : buffer[rows[i] * h + c];
  return {};
}

Status cpu_weighted_sum(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  const ReadF32 weights(call.in[1]);
  WriteF32 y(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
  for (int64_t t = 0; t < call.in[1].tensor->shape[0]; ++t) {
    for (int64_t c = 0; c < h; ++c) {
      double sum = 0;
      for (int64_t i = t * k; i < (t + 1) * k; ++i)
        sum += static_cast<double>(weights[i]) * static_cast<double>(x[i * h + c]);
      y[t * h + c] = static_cast<float>(sum);
    }
  }
  return {};
}

Status cpu_weighted_sum_grad(const CpuCall& call) {
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  const ReadF32 weights(call.in[2]);
  WriteF32 dx(call.out[0]);
  WriteF32 dweights(call.out[1]);
  const int64_t h = call.in[1].tensor->shape.cols();
  const int64_t k = call.in[2].tensor->shape.cols();
  for (int64_t i = 0; i < call.in[2].elements(); ++i) {
    double dot = 0;
    for (int64_t c = 0; c < h; ++c) {
      const double d = static_cast<double>(dy[i / k * h + c]);
      dot += d * static_cast<double>(x[i * h + c]);
      dx[i * h + c] = static_cast<float>(d * static_cast<double>(weights[i]));
    }
    dweights[i] = static_cast<float>(dot);
  }
  return {};
}

Status cpu_quantize_tokens(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  auto* q = static_cast<uint8_t*>(call.out[0].data);
  WriteF32 inverse(call.out[1]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t blocks = call.out[1].tensor->shape.cols();
  for (int64_t i = 0; i < call.out[1].elements(); ++i) {
    const int64_t begin = i / blocks * h + i % blocks * kTokenBlock;
    const int64_t end = std::min(begin + kTokenBlock, (i / blocks + 1) * h);
    float amax = 0;
    for (int64_t j = begin; j < end; ++j) amax = std::isnan(x[j]) ? x[j] : std::max(amax, std::abs(x[j]));
    const float scale = tensor_scale(amax, DType::kE4M3);
    for (int64_t j = begin; j < end; ++j) q[j] = to_fp8(x[j] * scale, DType::kE4M3);
    inverse[i] = 1.0F / scale;
  }
  return {};
}

Status cpu_dequantize_tokens(const CpuCall& call) {
  const auto* q = static_cast<const uint8_t*>(call.in[0].data);
  const ReadF32 inverse(call.in[1]);
  WriteF32 x(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t blocks = call.in[1].tensor->shape.cols();
  for (int64_t i = 0; i < call.in[0].elements(); ++i)
    x[i] = from_fp8(q[i], DType::kE4M3) * inverse[i / h * blocks + i % h / kTokenBlock];
  return {};
}

}  // namespace mbb::trainer
