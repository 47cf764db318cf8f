// CUDA functions of attention: which backend computes a call, and what each is given.
#include <numeric>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/general_attention.h"
#include "trainer/ops/relative_bucket.h"

namespace mbb::trainer::cuda {
namespace {

AttentionShape attention_shape(const Shape& qkv, const AttentionAttrs& a) {
  return {qkv[1], qkv[0], a.heads, a.kv_heads, a.head_dim, a.causal};
}

// What the fused kernels compute; everything else is the general kernel's.
bool is_plain(const AttentionAttrs& a) {
  return a.value_dim() == a.head_dim && a.window == 0 && !a.has_weight() && a.dropout == 0 && !a.packed &&
         a.keys.whole();
}

enum class Backend { kCudnn, kFlash, kGeneral };

// cuDNN where it is here and plans the shape, else our flash kernel, else the reference: the order of attention_backend
// = auto. One that is asked for and cannot compute the shape falls back in the same order.
Backend backend_of(const OpCall& call, const AttentionShape& shape, const AttentionAttrs& a, Element element) {
  if (!is_plain(a) || element != Element::kBf16 || shape.head_dim % 8 != 0) return Backend::kGeneral;
  CudnnAttention* cudnn = call.device.cudnn();
  if (a.backend != AttentionBackend::kFlash && cudnn != nullptr && shape.head_dim <= 128 &&
      cudnn->workspace(shape, a.scale, false).has_value())
    return Backend::kCudnn;
  return plan_flash_forward(shape).has_value() ? Backend::kFlash : Backend::kGeneral;
}

// Operands after q and kv stand from `first` on: sinks or table, then samples and step record.
Result<GeneralAttention> general(const OpCall& call, const Operand& q, const Operand& kv, size_t first) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_TRY(whole_sequence(a.queries));
  MB_TRY(whole_sequence(a.keys));
  if (a.packed && !a.causal)
    return fail(ErrorCode::kUnavailable, "attention both ways, or to other tokens, inside packs does not run on CUDA",
                "run on the CPU: --device cpu");
  if (a.all_heads != 0)
    return fail(ErrorCode::kUnavailable, "attention of a part of a rank's heads does not run on CUDA",
                "run on the CPU: --device cpu");
  const bool packed = &q == &kv;
  GeneralAttention g;
  MB_ASSIGN(g.element, element_of(*q.tensor));
  g.attrs = &a;
  g.batch = q.shape()[1], g.queries = q.shape()[0], g.keys = kv.shape()[0];
  g.q = q.data, g.kv = kv.data;
  g.q_row = q.shape().cols(), g.kv_row = kv.shape().cols();
  g.key_offset = packed ? int64_t{a.heads} * a.head_dim : 0;
  g.value_offset = g.key_offset + int64_t{a.kv_heads} * a.head_dim;
  if (a.has_weight()) g.weight = call.in[first++].data;
  if (a.relative_buckets > 0) {
    std::vector<int32_t> buckets(static_cast<size_t>(g.queries + g.keys - 1));
    for (size_t i = 0; i < buckets.size(); ++i)
      buckets[i] = relative_bucket(static_cast<int64_t>(i) - (g.queries - 1), a);
    MB_ASSIGN(const void* const table,
              call.device.constant(&call.op, std::as_bytes(std::span<const int32_t>(buckets))));
    g.buckets = static_cast<const int32_t*>(table);
  }
  if (a.dropout > 0) {
    g.samples = call.in[first].as<const int32_t>();
    g.record = call.in[first + 1].as<const float>();
    g.first_head = int64_t{call.coordinates.tp} * a.heads;
    first += 2;
  }
  if (a.packed) {
    MB_ASSIGN(g.own, own_starts(call, first, g.queries, general_attention_workspace(g)));
  }
  return g;
}

}  // namespace

Status attention_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const AttentionShape shape = attention_shape(call.in[0].shape(), a);
  const AttentionForward f{shape, a.scale, call.in[0].data, call.out[0].data, call.out[1].as<float>()};
  switch (backend_of(call, shape, a, element)) {
    case Backend::kCudnn: {
      MB_ASSIGN(const int64_t bytes, call.device.cudnn()->workspace(shape, a.scale, false));
      MB_ASSIGN(void* const workspace, call.device.scratch(bytes));
      return call.device.cudnn()->forward(f, workspace, call.device.stream());
    }
    case Backend::kFlash: return flash_forward(f, call.device.stream());
    case Backend::kGeneral: break;
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[0], 1));
  return general_attention_forward(g, f.out, f.lse, call.device.launch());
}

Status attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[1].tensor));
  const AttentionShape shape = attention_shape(call.in[1].shape(), a);
  const Operand& dqkv = call.out[a.has_weight() ? 1 : 0];
  AttentionBackward b{shape,           a.scale,         call.in[1].data,
                      call.in[2].data, call.in[0].data, call.in[3].as<const float>(),
                      dqkv.data,       nullptr};
  const Backend backend = backend_of(call, shape, a, element);
  if (backend == Backend::kCudnn) {
    MB_ASSIGN(const int64_t bytes, call.device.cudnn()->workspace(shape, a.scale, false));
    MB_ASSIGN(b.workspace, call.device.scratch(bytes));
    return call.device.cudnn()->backward(b, false, call.device.stream());
  }
  if (backend == Backend::kFlash) {
    MB_ASSIGN(b.workspace, call.device.scratch(flash_backward_workspace(shape)));
    return flash_backward(b, call.device.stream());
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[1], call.in[1], 4));
  MB_ASSIGN(void* const workspace, call.device.scratch(general_attention_workspace(g)));
  return general_attention_backward(
      g, {b.out, b.dout, b.lse, dqkv.data, dqkv.data, a.has_weight() ? call.out[0].as<float>() : nullptr, workspace},
      call.device.launch());
}

Status cross_attention_op(const OpCall& call) {
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[1], 2));
  return general_attention_forward(g, call.out[0].data, call.out[1].as<float>(), call.device.launch());
}

Status cross_attention_grad_op(const OpCall& call) {
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[1], call.in[2], 5));
  MB_ASSIGN(void* const workspace, call.device.scratch(general_attention_workspace(g)));
  return general_attention_backward(g,
                                    {call.in[3].data, call.in[0].data, call.in[4].as<const float>(), call.out[0].data,
                                     call.out[1].data, nullptr, workspace},
                                    call.device.launch());
}

}  // namespace mbb::trainer::cuda
