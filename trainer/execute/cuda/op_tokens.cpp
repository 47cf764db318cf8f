// CUDA functions on rows of (token, expert) pairs and on the plans of their exchange.
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/part_kernels.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/token_kernels.h"

namespace mbb::trainer::cuda {
namespace {

// Rows of pairs that stand in the tokens' order.
Result<Routed> in_order(const Operand& x, const Operand& weights) {
  Routed r;
  MB_ASSIGN(r.element, element_of(*x.tensor));
  r.tokens = weights.shape()[0], r.top_k = weights.shape().cols();
  r.hidden = x.shape().cols(), r.buffer_rows = x.shape().rows();
  return r;
}

RowShape row_shape(const Operand& of) {
  return {of.shape().rows(), of.shape().cols()};
}

}  // namespace

// Each pair reads its own row: a gather of one row a "token".
Status unpermute_op(const OpCall& call) {
  Routed r;
  MB_ASSIGN(r.element, element_of(*call.in[0].tensor));
  r.tokens = call.in[1].elements(), r.top_k = 1;
  r.hidden = call.in[0].shape().cols(), r.buffer_rows = call.in[0].shape().rows();
  r.rows = call.in[1].as<const int32_t>();
  return permute_grad(r, call.in[0].data, call.out[0].data, call.device.launch());
}

Status weighted_sum_op(const OpCall& call) {
  MB_ASSIGN(const Routed r, in_order(call.in[0], call.in[1]));
  return combine(r, call.in[0].data, call.in[1].as<const float>(), call.out[0].data, call.device.launch());
}

Status weighted_sum_grad_op(const OpCall& call) {
  MB_ASSIGN(const Routed r, in_order(call.in[1], call.in[2]));
  return combine_grad(r, call.in[0].data, call.in[1].data, call.in[2].as<const float>(), call.out[0].data,
                      call.out[1].as<float>(), call.device.launch());
}

Status quantize_tokens_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return quantize_tokens(element, row_shape(call.in[0]), call.in[0].data, call.out[0].as<uint8_t>(),
                         call.out[1].as<float>(), call.device.launch());
}

Status dequantize_tokens_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.out[0].tensor));
  return dequantize_tokens(element, row_shape(call.in[0]), call.in[0].as<const uint8_t>(), call.in[1].as<const float>(),
                           call.out[0].data, call.device.launch());
}

Status segment_counts_op(const OpCall& call) {
  const int64_t pieces = call.out[0].elements();
  return ok(
      cudaMemcpyAsync(call.out[0].data, call.in[0].as<const int32_t>() + pieces,
                      static_cast<size_t>(pieces) * sizeof(int32_t), cudaMemcpyDeviceToDevice, call.device.stream()),
      "copying counts of experts");
}

Status receive_plan_op(const OpCall& call) {
  return receive_plan(call.attrs<ReceiveAttrs>(), call.in[0].elements(), call.in[0].as<const int32_t>(),
                      call.out[0].as<int32_t>(), call.device.launch());
}

Status merge_pieces_op(const OpCall& call) {
  const auto& a = call.attrs<DispatchAttrs>();
  return merge_pieces(call.in[0].as<const int32_t>(), call.in[0].shape()[1], a.experts, a.rows,
                      call.out[1].as<int32_t>(), call.out[0].as<int32_t>(), call.device.launch());
}

}  // namespace mbb::trainer::cuda
