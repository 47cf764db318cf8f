// Experts' products of quantized operands on the CPU: the operands' values, then the product of values.
#include <array>
#include <vector>

#include "trainer/ops/cpu/decode.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// An operand's values in fp32, in the shape the product of values reads; a transposed copy is turned back.
struct Values {
  Tensor tensor;
  std::vector<float> storage;

  Values(const std::vector<double>& decoded, const Shape& shape, bool turned) : storage(decoded.size()) {
    tensor.path = "decoded operand";
    tensor.shape = shape;
    const auto cols = static_cast<size_t>(shape.cols()), rows = decoded.size() / cols;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < cols; ++c)
        storage[r * cols + c] = static_cast<float>(turned ? decoded[c * rows + r] : decoded[r * cols + c]);
  }
  CpuOperand operand() { return {storage.data(), &tensor}; }
};

// How experts' weights are one matrix: below each other, or side by side.
struct Stacks {
  int64_t lines = 1, inner = 1;
};

Status product(const CpuCall& call, const OpKind& plain, const Shape& a_shape, bool a_turned, const Shape& b_shape,
               bool b_turned, const Stacks& b_stacks) {
  const auto& attrs = call.attrs<GroupedQuantizedAttrs>();
  const size_t scales = attrs.block > 0 && call.in[2].tensor->dtype == DType::kE4M3 ? 4 : 2;
  const auto decoded = [&](size_t i, bool square, const Stacks& stacks) {
    if (attrs.block == 0) return decode_tensorwise(call.in[i], call.in[2 + i]);
    const float inverse = scales == 4 ? static_cast<const float*>(call.in[4 + i].data)[0] : 1.0F;
    return decode_blocks(call.in[i], call.in[2 + i], inverse,
                         block_table(call.in[i], attrs.block, square, stacks.lines, stacks.inner));
  };
  Values a(decoded(0, attrs.a_square, {}), a_shape, a_turned);
  Values b(decoded(1, attrs.b_square, b_stacks), b_shape, b_turned);
  std::vector<CpuOperand> in{a.operand(), b.operand()};
  in.insert(in.end(), call.in.begin() + 2 + static_cast<std::ptrdiff_t>(scales), call.in.end());
  Op op = call.op;
  op.kind = &plain;
  op.attrs = attrs.grouped;
  return plain.cpu(CpuCall{op, in, call.out, call.rank});
}

}  // namespace

Status cpu_grouped_gemm_quantized(const CpuCall& call) {
  const Shape& w = call.in[1].tensor->shape;  // [experts, n, k]
  return product(call, kGroupedGemm, call.in[0].tensor->shape, false, w, false, {.lines = w[0]});
}

Status cpu_grouped_gemm_quantized_dgrad(const CpuCall& call) {
  const Shape& w = call.in[1].tensor->shape;  // [k, experts · n]
  const int64_t experts = call.attrs<GroupedQuantizedAttrs>().local_experts;
  return product(call, kGroupedGemmDgrad, call.in[0].tensor->shape, false, Shape{experts, w[1] / experts, w[0]}, true,
                 {.inner = experts});
}

Status cpu_grouped_gemm_quantized_wgrad(const CpuCall& call) {
  const Shape &dy = call.in[0].tensor->shape, &x = call.in[1].tensor->shape;  // [n, rows], [k, rows]
  return product(call, kGroupedGemmWgrad, Shape{dy[1], dy[0]}, true, Shape{x[1], x[0]}, true, {});
}

}  // namespace mbb::trainer
