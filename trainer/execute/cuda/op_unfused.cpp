// CUDA functions of attention taken apart.
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/unfused_attention.h"

namespace mbb::trainer::cuda {
namespace {

constexpr float kMasked = -1e30f;

Status is_f32(const Operand& matrix) {
  if (matrix.tensor->dtype == DType::kF32) return {};
  return fail(ErrorCode::kBadArgument, "CUDA: " + matrix.tensor->path + " must be f32");
}

Status whole_attention(const AttentionAttrs& a) {
  if (a.all_heads == 0 && a.queries.whole() && a.keys.whole()) return {};
  return fail(ErrorCode::kUnavailable,
              "unfused attention of a part of the sequence or of the heads does not run on CUDA",
              "set fusion.attention_backend = auto, or run on the CPU: --device cpu");
}

// Ops on packed qkv; dropout's operands stand from `samples` on.
Result<UnfusedAttention> on_qkv(const OpCall& call, const Operand& qkv, size_t samples) {
  UnfusedAttention u;
  u.attrs = &call.attrs<AttentionAttrs>();
  MB_TRY(whole_attention(*u.attrs));
  MB_ASSIGN(u.element, element_of(*qkv.tensor));
  u.batch = qkv.shape()[1], u.seq = qkv.shape()[0];
  u.qkv = qkv.data;
  if (samples > 0 && u.attrs->dropout > 0) {
    u.samples = call.in[samples].as<const int32_t>();
    u.record = call.in[samples + 1].as<const float>();
    u.first_head = int64_t{call.coordinates.tp} * u.attrs->heads;
  }
  return u;
}

// Ops on the matrix [b, heads, s, s]; the pack's starts are operand 1 where `masks`.
Result<UnfusedAttention> on_matrix(const OpCall& call, const Operand& matrix, bool masks) {
  MB_TRY(is_f32(matrix));
  UnfusedAttention u;
  u.attrs = &call.attrs<AttentionAttrs>();
  MB_TRY(whole_attention(*u.attrs));
  u.batch = matrix.shape()[0], u.seq = matrix.shape()[3];
  if (masks && u.attrs->packed) {
    MB_ASSIGN(u.own, own_starts(call, 1, u.seq, 0));
  }
  return u;
}

}  // namespace

Status attention_scores_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_qkv(call, call.in[0], 0));
  return attention_scores(u, call.out[0].as<float>(), call.device.launch());
}

Status attention_scores_grad_op(const OpCall& call) {
  MB_TRY(is_f32(call.in[0]));
  MB_ASSIGN(const UnfusedAttention u, on_qkv(call, call.in[1], 0));
  return attention_scores_grad(u, call.in[0].as<const float>(), call.out[0].data, call.device.launch());
}

Status scale_mask_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[0], true));
  return scale_mask(u, call.in[0].as<const float>(), kMasked, call.out[0].as<float>(), call.device.launch());
}

Status scale_mask_grad_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[0], true));
  return scale_mask(u, call.in[0].as<const float>(), 0.0f, call.out[0].as<float>(), call.device.launch());
}

Status softmax_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[0], false));
  return matrix_softmax(u, call.in[0].as<const float>(), false, call.out[0].as<float>(), call.device.launch());
}

Status softmax_grad_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[1], false));
  return matrix_softmax_grad(u, call.in[0].as<const float>(), call.in[1].as<const float>(), 1.0f,
                             call.out[0].as<float>(), call.device.launch());
}

Status masked_softmax_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[0], true));
  return matrix_softmax(u, call.in[0].as<const float>(), true, call.out[0].as<float>(), call.device.launch());
}

Status masked_softmax_grad_op(const OpCall& call) {
  MB_ASSIGN(const UnfusedAttention u, on_matrix(call, call.in[1], false));
  return matrix_softmax_grad(u, call.in[0].as<const float>(), call.in[1].as<const float>(), u.attrs->scale,
                             call.out[0].as<float>(), call.device.launch());
}

Status attention_context_op(const OpCall& call) {
  MB_TRY(is_f32(call.in[0]));
  MB_ASSIGN(const UnfusedAttention u, on_qkv(call, call.in[1], 2));
  return attention_context(u, call.in[0].as<const float>(), call.out[0].data, call.device.launch());
}

Status attention_context_grad_op(const OpCall& call) {
  MB_TRY(is_f32(call.in[1]));
  MB_ASSIGN(const UnfusedAttention u, on_qkv(call, call.in[2], 3));
  return attention_context_grad(u, call.in[0].data, call.in[1].as<const float>(), call.out[0].as<float>(),
                                call.out[1].data, call.device.launch());
}

}  // namespace mbb::trainer::cuda
