// CUDA functions of fused ops.
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/any_shape.h"

namespace mbb::trainer::cuda {

Status rmsnorm_grad_add_op(const OpCall& call) {
  NormBackward n;
  MB_ASSIGN(n.element, element_of(*call.in[0].tensor));
  n.shape = {call.in[1].shape().rows(), call.in[1].shape().cols()};
  n.accumulate = call.attrs<NormAttrs>().accumulate;
  n.dy = call.in[0].data;
  n.x = call.in[1].data;
  n.weight = call.in[2].data;
  n.rstd = call.in[3].as<const float>();
  n.dresidual = call.in[4].data;
  n.dweight = call.out[0].as<float>();
  n.dx = call.out[1].data;
  if (!vectorizes(n.shape.cols, {n.x, n.dy, n.dresidual, n.weight, n.dx}))
    return any_norm_backward(n, call.device.stream());
  MB_ASSIGN(void* const partials, call.device.scratch(norm_backward_partials(n.shape, false, norm_launch(call).sms)));
  n.partials = static_cast<float*>(partials);
  return norm_backward(n, norm_launch(call));
}

Status cross_entropy_fused_op(const OpCall& call) {
  CrossEntropy c;
  MB_ASSIGN(c.element, element_of(*call.in[0].tensor));
  c.rows = call.in[0].shape().rows();
  c.vocab = call.in[0].shape().cols();
  c.logits = call.in[0].data;
  c.gradient = call.out[0].data;
  c.targets = call.in[1].as<const int32_t>();
  c.scalar = !vectorizes(c.vocab, {c.logits, c.gradient});
  auto* sums = call.out[1].as<float>();
  return ce_fused(c, sums, sums + c.rows, call.device.launch());
}

}  // namespace mbb::trainer::cuda
