// CUDA functions of norms, embedding, rotary embedding and attention.
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/any_shape.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

AttentionShape attention_shape(const Shape& qkv, const AttentionAttrs& a) {
  return {qkv[1], qkv[0], a.heads, a.kv_heads, a.head_dim, a.causal};
}

enum class Backend { kCudnn, kFlash, kUnfused };

// cuDNN where it is here and plans the shape, else our flash kernel, else the reference: the order of attention_backend
// = auto. One that is asked for and cannot compute the shape falls back in the same order.
Backend backend_of(const OpCall& call, const AttentionShape& shape, float scale, Element element,
                   AttentionBackend wanted) {
  if (element != Element::kBf16 || shape.head_dim % 8 != 0) return Backend::kUnfused;
  CudnnAttention* cudnn = call.device.cudnn();
  if (wanted != AttentionBackend::kFlash && cudnn != nullptr && shape.head_dim <= 128 &&
      cudnn->workspace(shape, scale, false).has_value())
    return Backend::kCudnn;
  return plan_flash_forward(shape).has_value() ? Backend::kFlash : Backend::kUnfused;
}

}  // namespace

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
  return norm_forward(n, call.device.launch());
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
  MB_ASSIGN(void* const partials,
            call.device.scratch(norm_backward_partials(n.shape, false, call.device.launch().sms)));
  n.partials = static_cast<float*>(partials);
  return norm_backward(n, call.device.launch());
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
  auto* dtable = call.out[0].as<float>();
  if (!call.attrs<EmbeddingAttrs>().accumulate)
    MB_TRY(ok(cudaMemsetAsync(dtable, 0, static_cast<size_t>(call.out[0].tensor->bytes()), call.device.stream()),
              "clearing the embedding gradient"));
  if (!vectorizes(e.cols, {call.in[0].data, dtable}))
    return any_embedding_backward(e, call.in[0].data, dtable, call.device.stream());
  MB_ASSIGN(void* const workspace, call.device.scratch(embedding_workspace(e.tokens)));
  return embedding_backward(e, call.in[0].data, dtable, workspace, call.device.launch());
}

Status rope_op(const OpCall& call) {
  const auto& a = call.attrs<RopeAttrs>();
  if (a.turned() != a.head_dim || a.value_dim() != a.head_dim || a.interleaved || !a.frequencies.empty() ||
      a.factor != 1.0 || a.packed || a.turned_heads != 0)
    return fail(ErrorCode::kUnavailable, "partial, interleaved, scaled and packed rotary positions do not run on CUDA",
                "run on the CPU: --device cpu");
  Rope r;
  MB_ASSIGN(r.element, element_of(*call.in[0].tensor));
  r.tokens = call.in[0].shape().rows();
  r.batch = call.in[0].shape()[1];
  r.heads = a.heads;
  r.kv_heads = a.kv_heads;
  r.head_dim = a.head_dim;
  r.backward = a.inverse;
  r.qkv = call.out[0].data;
  if (call.out[0].data != call.in[0].data)
    MB_TRY(ok(cudaMemcpyAsync(call.out[0].data, call.in[0].data, static_cast<size_t>(call.out[0].tensor->bytes()),
                              cudaMemcpyDeviceToDevice, call.device.stream()),
              "copying qkv before its rotation"));
  MB_ASSIGN(r.table, call.device.rope_table(call.in[0].shape()[0], a.head_dim, a.theta));
  if (a.head_dim % 16 != 0 || !vectorizes(8, {r.qkv})) return any_rope(r, call.device.stream());
  return rope(r, call.device.launch());
}

// What the kernels do not compute must never run as if it were not asked for.
Status plain_attention(const AttentionAttrs& a) {
  if (a.value_dim() == a.head_dim && a.window == 0 && !a.has_weight() && a.dropout == 0 && !a.packed) return {};
  return fail(ErrorCode::kUnavailable,
              "attention with a window, sinks, a position bias, dropout, packed sequences or other value widths "
              "does not run on CUDA",
              "run on the CPU: --device cpu");
}

Status attention_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_TRY(plain_attention(a));
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const AttentionShape shape = attention_shape(call.in[0].shape(), a);
  const AttentionForward f{shape, a.scale, call.in[0].data, call.out[0].data, call.out[1].as<float>()};
  switch (backend_of(call, shape, a.scale, element, a.backend)) {
    case Backend::kCudnn: {
      MB_ASSIGN(const int64_t bytes, call.device.cudnn()->workspace(shape, a.scale, false));
      MB_ASSIGN(void* const workspace, call.device.scratch(bytes));
      return call.device.cudnn()->forward(f, workspace, call.device.stream());
    }
    case Backend::kFlash: return flash_forward(f, call.device.stream());
    case Backend::kUnfused: return any_attention_forward(element, f, call.device.stream());
  }
  return {};
}

Status attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_TRY(plain_attention(a));
  MB_ASSIGN(const Element element, element_of(*call.in[1].tensor));
  const AttentionShape shape = attention_shape(call.in[1].shape(), a);
  AttentionBackward b{shape,
                      a.scale,
                      call.in[1].data,
                      call.in[2].data,
                      call.in[0].data,
                      call.in[3].as<const float>(),
                      call.out[0].data,
                      nullptr};
  const Backend backend = backend_of(call, shape, a.scale, element, a.backend);
  int64_t bytes = flash_backward_workspace(shape);
  if (backend == Backend::kCudnn) {
    MB_ASSIGN(bytes, call.device.cudnn()->workspace(shape, a.scale, false));
  }
  MB_ASSIGN(b.workspace, call.device.scratch(bytes));
  switch (backend) {
    case Backend::kCudnn: return call.device.cudnn()->backward(b, false, call.device.stream());
    case Backend::kFlash: return flash_backward(b, call.device.stream());
    case Backend::kUnfused: return any_attention_backward(element, b, call.device.stream());
  }
  return {};
}

}  // namespace mbb::trainer::cuda
