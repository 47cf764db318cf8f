// Fused ops on the CPU: the ops they stand for, one after the other, with one rounding of a sum; SwiGLU sees its input
// as memory would hold it.
#include <array>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// A tensor between the parts of a fused op.
struct Between {
  Tensor tensor;
  std::vector<std::byte> storage;
  Between(const Shape& shape, DType dtype) {
    tensor.path = "between the parts of a fused op";
    tensor.shape = shape;
    tensor.dtype = dtype;
    storage.resize(static_cast<size_t>(tensor.bytes()));
  }
  CpuOperand operand() { return {storage.data(), &tensor}; }
};

// out = a + b, rounded once to out's type.
void add_into(const CpuOperand& a, const CpuOperand& b, const CpuOperand& out) {
  const ReadF32 left(a);
  const ReadF32 right(b);
  WriteF32 sum(out);
  for (int64_t i = 0; i < out.elements(); ++i) sum[i] = left[i] + right[i];
}

}  // namespace

Status cpu_gemm_add(const CpuCall& call) {
  Between product(call.out[0].tensor->shape, DType::kF32);
  const std::array out = {product.operand()};
  MB_TRY(cpu_gemm(CpuCall{call.op, call.in.first(2), out, call.rank}));
  add_into(product.operand(), call.in[2], call.out[0]);
  return {};
}

Status cpu_gemm_swiglu(const CpuCall& call) {
  MB_TRY(cpu_gemm(CpuCall{call.op, call.in, call.out.first(1), call.rank}));
  return cpu_swiglu(CpuCall{call.op, call.out.first(1), call.out.subspan(1), call.rank});
}

Status cpu_gemm_swiglu_grad(const CpuCall& call) {
  const Tensor& dy = *call.in[0].tensor;
  Between gradient(dy.shape.with_last(call.in[1].tensor->shape.cols()), dy.dtype);
  const std::array product = {gradient.operand()};
  MB_TRY(cpu_gemm(CpuCall{call.op, call.in.first(2), product, call.rank}));
  const std::array in = {gradient.operand(), call.in[2]};
  return cpu_swiglu_grad(CpuCall{call.op, in, call.out, call.rank});
}

Status cpu_gemm_scaled_add(const CpuCall& call) {
  Between product(call.out[0].tensor->shape, DType::kF32);
  const std::array out = {product.operand()};
  MB_TRY(cpu_gemm_scaled(CpuCall{call.op, call.in.first(4), out, call.rank}));
  add_into(product.operand(), call.in[4], call.out[0]);
  return {};
}

Status cpu_rmsnorm_grad_add(const CpuCall& call) {
  Between dx(call.out[1].tensor->shape, DType::kF32);
  const std::array out = {call.out[0], dx.operand()};
  MB_TRY(cpu_rmsnorm_grad(CpuCall{call.op, call.in.first(4), out, call.rank}));
  add_into(dx.operand(), call.in[4], call.out[1]);
  return {};
}

Status cpu_cross_entropy_fused(const CpuCall& call) {
  const CpuOperand &logits = call.in[0], &labels = call.in[1];
  Between maxima(Shape{logits.tensor->shape.rows()}, DType::kF32);
  const std::array max_in = {logits};
  const std::array max_out = {maxima.operand()};
  MB_TRY(cpu_cross_entropy_max(CpuCall{call.op, max_in, max_out, call.rank}));
  const std::array sum_in = {logits, maxima.operand(), labels};
  const std::array sum_out = {call.out[1]};
  MB_TRY(cpu_cross_entropy_sum(CpuCall{call.op, sum_in, sum_out, call.rank}));
  const std::array grad_in = {logits, maxima.operand(), call.out[1], labels};
  const std::array grad_out = {call.out[0]};
  return cpu_cross_entropy_grad(CpuCall{call.op, grad_in, grad_out, call.rank});
}

}  // namespace mbb::trainer
