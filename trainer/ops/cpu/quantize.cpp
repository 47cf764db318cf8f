// Tensorwise FP8 quantization and the scaled GEMM on the CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/precision/fp8.h"

namespace mbb::trainer {
namespace {

uint8_t* bytes_in(const CpuOperand& operand) {
  return static_cast<uint8_t*>(operand.data);
}

// out: q, qᵀ, scales.
void quantize_to(const CpuOperand& value, std::span<const CpuOperand> out) {
  const ReadF32 x(value);
  const DType to = out[0].tensor->dtype;
  const int64_t rows = value.tensor->shape.rows();
  const int64_t cols = value.tensor->shape.cols();
  float amax = 0;
  bool nan = false;
  for (int64_t i = 0; i < rows * cols; ++i) {
    nan = nan || std::isnan(x[i]);
    amax = std::max(amax, std::abs(x[i]));
  }
  if (nan) amax = std::nanf("");
  const float scale = tensor_scale(amax, to);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      bytes_in(out[0])[r * cols + c] = bytes_in(out[1])[c * rows + r] = to_fp8(x[r * cols + c] * scale, to);
  WriteF32 scales(out[2]);
  scales[0] = 1.0F / scale;
  scales[1] = amax;
}

// A temporary of the type and shape that the unfused op would have written.
struct Temporary {
  Tensor tensor;
  std::vector<std::byte> storage;
  Temporary(const Shape& shape, DType dtype) {
    tensor.path = "value before quantization";
    tensor.shape = shape;
    tensor.dtype = dtype;
    storage.resize(static_cast<size_t>(tensor.bytes()));
  }
  CpuOperand operand() { return {storage.data(), &tensor}; }
};

std::vector<float> decoded(const CpuOperand& operand) {
  std::vector<float> values(static_cast<size_t>(operand.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = from_fp8(bytes_in(operand)[i], operand.tensor->dtype);
  return values;
}

}  // namespace

Status cpu_quantize(const CpuCall& call) {
  quantize_to(call.in[0], call.out);
  return {};
}

Status cpu_rmsnorm_quantize(const CpuCall& call) {
  Temporary y(call.in[0].tensor->shape, call.in[0].tensor->dtype);
  const std::array out = {y.operand(), call.out[3]};
  MB_TRY(cpu_rmsnorm(CpuCall{call.op, call.in, out, call.rank}));
  quantize_to(y.operand(), call.out);
  return {};
}

Status cpu_swiglu_quantize(const CpuCall& call) {
  Temporary y(call.out[0].tensor->shape, call.in[0].tensor->dtype);
  const std::array out = {y.operand()};
  MB_TRY(cpu_swiglu(CpuCall{call.op, call.in, out, call.rank}));
  quantize_to(y.operand(), call.out);
  return {};
}

Status cpu_swiglu_grad_quantize(const CpuCall& call) {
  Temporary y(call.in[1].tensor->shape, call.in[1].tensor->dtype);
  const std::array out = {y.operand()};
  MB_TRY(cpu_swiglu_grad(CpuCall{call.op, call.in, out, call.rank}));
  quantize_to(y.operand(), call.out);
  return {};
}

Status cpu_gemm_scaled(const CpuCall& call) {
  const std::vector<float> a = decoded(call.in[0]);
  const std::vector<float> b = decoded(call.in[1]);
  const ReadF32 a_scales(call.in[2]);
  const ReadF32 b_scales(call.in[3]);
  const bool accumulate = call.attrs<ScaledGemmAttrs>().accumulate;
  WriteF32 d(call.out[0], accumulate);
  const int64_t m = call.in[0].tensor->shape.rows();
  const int64_t k = call.in[0].tensor->shape.cols();
  const int64_t n = call.in[1].tensor->shape.rows();
  const double scale = static_cast<double>(a_scales[0]) * static_cast<double>(b_scales[0]);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += static_cast<double>(a[static_cast<size_t>(i * k + l)]) *
               static_cast<double>(b[static_cast<size_t>(j * k + l)]);
      d[i * n + j] = static_cast<float>((accumulate ? static_cast<double>(d[i * n + j]) : 0.0) + sum * scale);
    }
  }
  return {};
}

}  // namespace mbb::trainer
