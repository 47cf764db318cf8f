// Fused biases on the CPU: the ops they stand for, with values between them in fp32.
#include <array>
#include <vector>

#include "trainer/ops/cpu/dropout.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// x + bias as an operand of its own.
struct Biased {
  Tensor tensor;
  std::vector<float> values;
  Biased(const CpuOperand& x, const CpuOperand& bias) : tensor(*x.tensor) {
    tensor.dtype = DType::kF32;
    const ReadF32 from(x);
    const ReadF32 b(bias);
    const int64_t cols = tensor.shape.cols();
    for (int64_t i = 0; i < x.elements(); ++i) values.push_back(from[i] + b[i % cols]);
  }
  CpuOperand operand() { return {values.data(), &tensor}; }
};

}  // namespace

Status cpu_bias_activation(const CpuCall& call) {
  Biased biased(call.in[0], call.in[1]);
  const std::array in = {biased.operand()};
  return cpu_activation(CpuCall{call.op, in, call.out, call.rank});
}

Status cpu_bias_activation_grad(const CpuCall& call) {
  Biased biased(call.in[1], call.in[2]);
  const std::array in = {call.in[0], biased.operand()};
  return cpu_activation_grad(CpuCall{call.op, in, call.out, call.rank});
}

Status cpu_bias_dropout_add(const CpuCall& call) {
  const auto& a = call.attrs<DropoutAttrs>();
  const ReadF32 residual(call.in[0]);
  const ReadF32 x(call.in[1]);
  const bool drops = a.probability > 0;
  const size_t of_dropout = drops ? (a.packed ? 3 : 2) : 0;
  const bool biased = call.in.size() == 3 + of_dropout;
  const ReadF32 bias(call.in[biased ? 2 : 1]);
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t h = shape.cols();
  std::vector<double> factors(static_cast<size_t>(shape.elements()), 1.0);
  if (drops) {
    const size_t at = call.in.size() - of_dropout;
    const int32_t* samples = ints(call.in[at]);
    const ReadF32 record(call.in[at + 1]);
    const DropoutMask mask(a.probability, a.stream, record.data());
    const int64_t first = a.sequence_sharded ? call.rank.coordinates.tp * shape[0] : 0;
    const auto rows = rows_of(a.positions, a.packed ? &call.in.back() : nullptr, first + shape[0]);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const int64_t position = rows[static_cast<size_t>(first + i / h / shape[1])].at;
      factors[static_cast<size_t>(i)] = mask.factor(samples[i / h % shape[1]], position * h + i % h);
    }
  }
  WriteF32 y(call.out[0]);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const float before = biased ? x[i] + bias[i % h] : x[i];
    const auto kept = static_cast<float>(static_cast<double>(before) * factors[static_cast<size_t>(i)]);
    y[i] = residual[i] + kept;
  }
  return {};
}

}  // namespace mbb::trainer
