// Element-wise ops on the CPU.
#include <cmath>
#include <cstring>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_add(const CpuCall& call) {
  const ReadF32 a(call.in[0]);
  const ReadF32 b(call.in[1]);
  WriteF32 y(call.out[0]);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = a[i] + b[i];
  return {};
}

Status cpu_fill_zero(const CpuCall& call) {
  std::memset(call.out[0].data, 0, static_cast<size_t>(call.out[0].tensor->bytes()));
  return {};
}

Status cpu_cast(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = x[i];
  return {};
}

Status cpu_swiglu(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const int64_t f = call.out[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.out[0].tensor->shape.rows(); ++r) {
    for (int64_t i = 0; i < f; ++i) {
      const double gate = static_cast<double>(x[r * 2 * f + i]);
      const double up = static_cast<double>(x[r * 2 * f + f + i]);
      y[r * f + i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
  return {};
}

Status cpu_swiglu_grad(const CpuCall& call) {
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  WriteF32 dx(call.out[0]);
  const int64_t f = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r) {
    for (int64_t i = 0; i < f; ++i) {
      const double d = static_cast<double>(dy[r * f + i]);
      const double gate = static_cast<double>(x[r * 2 * f + i]);
      const double up = static_cast<double>(x[r * 2 * f + f + i]);
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      dx[r * 2 * f + i] = static_cast<float>(d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
      dx[r * 2 * f + f + i] = static_cast<float>(d * gate * sigmoid);
    }
  }
  return {};
}

Status cpu_copy(const CpuCall& call) {
  std::memcpy(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].tensor->bytes()));
  return {};
}

}  // namespace mbb::trainer
