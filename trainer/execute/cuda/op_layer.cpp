// CUDA functions of RMSNorm, embedding and rotary embedding.
#include "trainer/execute/cuda/f32_gradients.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/any_shape.h"
#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
Status rmsnorm_op(const OpCall& call) {
  NormForward n;
  MB_ASSIGN(n.element, element_of(*call.in[0].tensor));
  n.shape = {call.in[0].shape().rows(), call.in[0].shape().cols()};
  n.eps = call.attrs<NormAttrs>().eps;
  n.x = call.in[0].data;
  n.weight = call.in[1].data;
  n.y = call.out[0].data;
  n.rstd = call.out[1].as<float>();
  if (!vectorizes(n.shape.cols, {n.x, n.weight, n.y})) return any_norm_forward(n, call.device.stream());
  return norm_forward(n, norm_launch(call));
}

Status rmsnorm_grad_op(const OpCall& call) {
  NormBackward n;
  MB_ASSIGN(n.element, element_of(*call.in[0].tensor));
  n.shape = {call.in[1].shape().rows(), call.in[1].shape().cols()};
  n.accumulate = call.attrs<NormAttrs>().accumulate;
  n.dy = call.in[0].data;
  n.x = call.in[1].data;
  n.weight = call.in[2].data;
  n.rstd = call.in[3].as<const float>();
  n.dweight = call.out[0].as<float>();
  n.dx = call.out[1].data;
  if (!vectorizes(n.shape.cols, {n.x, n.dy, n.weight, n.dx})) return any_norm_backward(n, call.device.stream());
  const Launch launch = norm_launch(call);
  MB_ASSIGN(void* const partials, call.device.scratch(norm_backward_partials(n.shape, false, launch.sms)));
  n.partials = static_cast<float*>(partials);
  return norm_backward(n, launch);
}

Status embedding_op(const OpCall& call) {
  Embedding e;
  MB_ASSIGN(e.element, element_of(*call.in[1].tensor));
  e.tokens = call.in[0].elements();
  e.cols = call.in[1].shape().cols();
  e.vocab = call.in[1].shape().rows();
  e.first = e.vocab * call.coordinates.tp;
  e.ids = call.in[0].as<const int32_t>();
  if (!vectorizes(e.cols, {call.in[1].data, call.out[0].data}))
    return any_embedding_forward(e, call.in[1].data, call.out[0].data, call.device.stream());
  return embedding_forward(e, call.in[1].data, call.out[0].data, call.device.launch());
}

Status embedding_grad_op(const OpCall& call) {
  Embedding e;
  MB_ASSIGN(e.element, element_of(*call.in[0].tensor));
  e.tokens = call.in[1].elements();
  e.cols = call.in[2].shape().cols();
  e.vocab = call.in[2].shape().rows();
  e.first = e.vocab * call.coordinates.tp;
  e.ids = call.in[1].as<const int32_t>();
  void* const dtable = call.out[0].data;
  MB_ASSIGN(e.gradient, element_of(*call.out[0].tensor));
  const bool vectors = vectorizes(e.cols, {call.in[0].data, dtable});
  if (!vectors && e.gradient != Element::kF32) return with_f32_gradients(call, embedding_grad_op);
  const bool accumulate = call.attrs<EmbeddingAttrs>().accumulate;
  if (!vectors) {
    if (!accumulate)
      MB_TRY(ok(cudaMemsetAsync(dtable, 0, static_cast<size_t>(call.out[0].tensor->bytes()), call.device.stream()),
                "clearing the embedding gradient"));
    return any_embedding_backward(e, call.in[0].data, static_cast<float*>(dtable), call.device.stream());
  }
  MB_ASSIGN(void* const workspace, call.device.scratch(embedding_workspace(e.tokens + e.vocab)));
  const auto backward = accumulate ? embedding_backward : first_embedding_backward;
  return backward(e, call.in[0].data, dtable, workspace, call.device.launch());
}

Status rope_op(const OpCall& call) {
  const auto& a = call.attrs<RopeAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const Shape& shape = call.in[0].shape();
  MB_ASSIGN(const RotaryTables tables, rotary_tables(call, a.rotation, a.turned(), shape[0], 1));
  Rope r;
  r.element = element;
  r.tokens = shape.rows(), r.batch = shape[1], r.width = shape.cols();
  r.first_head = a.first_head, r.heads = a.end_head() - a.first_head, r.head_dim = a.head_dim;
  r.offset = a.rotary_offset, r.turned = a.turned();
  r.backward = a.inverse, r.interleaved = a.rotation.interleaved;
  r.from = call.in[0].data, r.to = call.out[0].data;
  r.table = tables.table, r.own = tables.own;
  if (!rope_takes(r)) {
    if (r.from != r.to)
      MB_TRY(ok(cudaMemcpyAsync(r.to, r.from, static_cast<size_t>(call.out[0].tensor->bytes()),
                                cudaMemcpyDeviceToDevice, call.device.stream()),
                "copying qkv before its rotation"));
    r.from = r.to;
  }
  if (!rope_takes(r)) return rope_any(element, a, shape[0], shape[1], r.to, r.table, r.own, call.device.launch());
  return rope(r, call.device.launch());
}

}  // namespace mbb::trainer::cuda
