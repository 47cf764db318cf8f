// Tensorwise FP8 quantization and the scaled GEMM on the CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/cpu/product.h"
#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

uint8_t* bytes_in(const CpuOperand& operand) {
  return static_cast<uint8_t*>(operand.data);
}

// The largest magnitude; NaN when any value is.
float amax_of(const ReadF32& x, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(x[i])) return std::nanf("");
    amax = std::max(amax, std::abs(x[i]));
  }
  return amax;
}

// out: q, qᵀ, scales. The scale follows from the present amax or from one of more values, or is given.
struct Given {
  const float *scale = nullptr, *amax = nullptr;
};
void quantize_to(const CpuOperand& value, std::span<const CpuOperand> out, const Given& given = {}) {
  const ReadF32 x(value);
  const DType to = out[0].tensor->dtype;
  const int64_t rows = value.tensor->shape.rows();
  const int64_t cols = value.tensor->shape.cols();
  const float amax = given.amax != nullptr ? *given.amax : amax_of(x, rows * cols);
  const float scale = given.scale != nullptr ? *given.scale : tensor_scale(amax, to, largest_of(value.tensor->dtype));
  uint8_t *const q = bytes_in(out[0]), *const qt = bytes_in(out[1]);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const uint8_t code = to_fp8(x[r * cols + c] * scale, to);
      if (q != nullptr) q[r * cols + c] = code;
      if (qt != nullptr) qt[c * rows + r] = code;
    }
  }
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

std::vector<double> decoded(const CpuOperand& operand) {
  std::vector<double> values(static_cast<size_t>(operand.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(from_fp8(bytes_in(operand)[i], operand.tensor->dtype));
  return values;
}

}  // namespace

Status cpu_amax(const CpuCall& call) {
  WriteF32(call.out[0])[0] = amax_of(ReadF32(call.in[0]), call.in[0].elements());
  return {};
}

Status cpu_quantize(const CpuCall& call) {
  quantize_to(call.in[0], call.out,
              {.amax = call.in.size() > 1 ? static_cast<const float*>(call.in[1].data) : nullptr});
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

Status cpu_quantize_delayed(const CpuCall& call) {
  const ReadF32 scale(call.in[1]);
  quantize_to(call.in[0], call.out, {.scale = scale.data()});
  return {};
}

Status cpu_amax_record(const CpuCall& call) {
  const bool accumulate = call.attrs<AmaxAttrs>().accumulate;
  WriteF32 amax(call.out[0], accumulate);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) {
    const float now = ReadF32(call.in[static_cast<size_t>(i)])[1];
    // A NaN once seen stays.
    if (!accumulate || std::isnan(now) || now > amax[i]) amax[i] = now;
  }
  return {};
}

Status cpu_scale_update(const CpuCall& call) {
  const auto& a = call.attrs<ScaleUpdateAttrs>();
  const ReadF32 amax(call.in[0]);
  const ReadF32 record(call.in[3]);
  WriteF32 history(call.out[0], true);
  WriteF32 scale(call.out[1], true);
  const int64_t count = call.in[0].elements();
  const int64_t length = call.out[0].tensor->shape[0];
  const auto row = static_cast<int64_t>(record[StepRecord::kStep]) % length;
  for (int64_t i = 0; i < count; ++i) {
    history[row * count + i] = amax[i];
    float largest = amax[i];
    for (int64_t r = 0; r < length && !a.most_recent; ++r) {
      const float past = history[r * count + i];
      if (std::isnan(past) || past > largest) largest = past;
    }
    scale[i] = delayed_scale(largest, scale[i], a.to, a.margin);
  }
  return {};
}

Status cpu_gemm_scaled(const CpuCall& call) {
  const ReadF32 a_scales(call.in[2]);
  const ReadF32 b_scales(call.in[3]);
  const bool accumulate = call.attrs<ScaledGemmAttrs>().accumulate;
  WriteF32 d(call.out[0], accumulate);
  const int64_t n = call.in[1].tensor->shape.rows();
  const double scale = static_cast<double>(a_scales[0]) * static_cast<double>(b_scales[0]);
  products(decoded(call.in[0]), decoded(call.in[1]), call.in[0].tensor->shape.cols(),
           [&](int64_t i, const std::vector<double>& row) {
             for (int64_t j = 0; j < n; ++j)
               d[i * n + j] = static_cast<float>((accumulate ? static_cast<double>(d[i * n + j]) : 0.0) +
                                                 row[static_cast<size_t>(j)] * scale);
           });
  return {};
}

}  // namespace mbb::trainer
