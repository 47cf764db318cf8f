// fp32 stand-ins of bf16 main gradients.
#include "trainer/execute/cuda/f32_gradients.h"

#include <vector>

namespace mbb::trainer::cuda {
namespace {

bool is_bf16_gradient(const Operand& operand) {
  return operand.tensor->category == Category::kMainGrad && operand.tensor->dtype == DType::kBf16;
}

int64_t stand_in_bytes(const Operand& operand) {
  return (operand.elements() * 4 + 255) / 256 * 256;
}

}  // namespace

Status with_f32_gradients(const OpCall& call, OpFunction run) {
  int64_t bytes = 0;
  for (const Operand& operand : call.out)
    if (is_bf16_gradient(operand)) bytes += stand_in_bytes(operand);
  if (bytes == 0) return run(call);

  MB_ASSIGN(void* const memory, call.device.gradient_scratch(bytes));
  const Launch launch = call.device.launch();
  std::vector<Operand> in(call.in.begin(), call.in.end()), out(call.out.begin(), call.out.end());
  std::vector<Tensor> tensors;
  tensors.reserve(out.size());  // operands point into it
  auto* at = static_cast<std::byte*>(memory);
  for (Operand& operand : out) {
    if (!is_bf16_gradient(operand)) continue;
    const Operand original = operand;
    tensors.push_back(*original.tensor);
    tensors.back().dtype = DType::kF32;
    operand = {at, &tensors.back()};
    for (Operand& read : in)
      if (read.data == original.data) read = operand;
    MB_TRY(cast(Element::kBf16, original.data, Element::kF32, at, original.elements(), launch));
    at += stand_in_bytes(original);
  }
  MB_TRY(run(OpCall{call.op, in, out, call.coordinates, call.shard_index, call.device, call.sm_target}));
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].data != call.out[i].data)
      MB_TRY(cast(Element::kF32, out[i].data, Element::kBf16, call.out[i].data, out[i].elements(), launch));
  return {};
}

}  // namespace mbb::trainer::cuda
