// The CPU function of every op kind: the oracle. Simple, scalar, right; operands as each record's shape rule lists
// them.
#pragma once

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

Status cpu_gemm(const CpuCall& call);
Status cpu_embedding(const CpuCall& call);
Status cpu_embedding_grad(const CpuCall& call);
Status cpu_rmsnorm(const CpuCall& call);
Status cpu_rmsnorm_grad(const CpuCall& call);
Status cpu_rope(const CpuCall& call);
Status cpu_attention(const CpuCall& call);
Status cpu_attention_grad(const CpuCall& call);
Status cpu_layernorm(const CpuCall& call);
Status cpu_layernorm_grad(const CpuCall& call);
Status cpu_qk_norm(const CpuCall& call);
Status cpu_qk_norm_grad(const CpuCall& call);
Status cpu_bias_add(const CpuCall& call);
Status cpu_bias_add_grad(const CpuCall& call);
Status cpu_position_embedding(const CpuCall& call);
Status cpu_position_embedding_grad(const CpuCall& call);
Status cpu_activation(const CpuCall& call);
Status cpu_activation_grad(const CpuCall& call);
Status cpu_dropout(const CpuCall& call);
Status cpu_scale_by(const CpuCall& call);
Status cpu_cross_attention(const CpuCall& call);
Status cpu_cross_attention_grad(const CpuCall& call);
Status cpu_router_select(const CpuCall& call);
Status cpu_router_weights(const CpuCall& call);
Status cpu_router_weights_grad(const CpuCall& call);
Status cpu_router_loss(const CpuCall& call);
Status cpu_router_loss_grad(const CpuCall& call);
Status cpu_expert_load(const CpuCall& call);
Status cpu_expert_bias(const CpuCall& call);
Status cpu_latent_pack(const CpuCall& call);
Status cpu_latent_pack_grad(const CpuCall& call);
Status cpu_dispatch_plan(const CpuCall& call);
Status cpu_permute(const CpuCall& call);
Status cpu_permute_grad(const CpuCall& call);
Status cpu_grouped_gemm(const CpuCall& call);
Status cpu_grouped_gemm_dgrad(const CpuCall& call);
Status cpu_grouped_gemm_wgrad(const CpuCall& call);
Status cpu_grouped_bias(const CpuCall& call);
Status cpu_grouped_bias_grad(const CpuCall& call);
Status cpu_combine(const CpuCall& call);
Status cpu_combine_grad(const CpuCall& call);
Status cpu_shift_tokens(const CpuCall& call);
Status cpu_swiglu(const CpuCall& call);
Status cpu_swiglu_grad(const CpuCall& call);
Status cpu_add(const CpuCall& call);
Status cpu_fill_zero(const CpuCall& call);
Status cpu_cast(const CpuCall& call);
Status cpu_copy(const CpuCall& call);
Status cpu_attention_scores(const CpuCall& call);
Status cpu_attention_scores_grad(const CpuCall& call);
Status cpu_scale_mask(const CpuCall& call);
Status cpu_scale_mask_grad(const CpuCall& call);
Status cpu_softmax(const CpuCall& call);
Status cpu_softmax_grad(const CpuCall& call);
Status cpu_masked_softmax(const CpuCall& call);
Status cpu_masked_softmax_grad(const CpuCall& call);
Status cpu_attention_context(const CpuCall& call);
Status cpu_attention_context_grad(const CpuCall& call);
Status cpu_bias_activation(const CpuCall& call);
Status cpu_bias_activation_grad(const CpuCall& call);
Status cpu_bias_dropout_add(const CpuCall& call);
Status cpu_gemm_add(const CpuCall& call);
Status cpu_gemm_scaled_add(const CpuCall& call);
Status cpu_rmsnorm_grad_add(const CpuCall& call);
Status cpu_cross_entropy_fused(const CpuCall& call);
Status cpu_quantize(const CpuCall& call);
Status cpu_rmsnorm_quantize(const CpuCall& call);
Status cpu_swiglu_quantize(const CpuCall& call);
Status cpu_swiglu_grad_quantize(const CpuCall& call);
Status cpu_gemm_scaled(const CpuCall& call);
Status cpu_cross_entropy_max(const CpuCall& call);
Status cpu_cross_entropy_sum(const CpuCall& call);
Status cpu_cross_entropy_loss(const CpuCall& call);
Status cpu_cross_entropy_grad(const CpuCall& call);
Status cpu_all_gather(const CpuCall& call);
Status cpu_reduce_scatter(const CpuCall& call);
Status cpu_all_reduce(const CpuCall& call);
Status cpu_group_identity(const CpuCall& call);
Status cpu_send(const CpuCall& call);
Status cpu_recv(const CpuCall& call);
Status cpu_grad_square_sum(const CpuCall& call);
Status cpu_scalar_sum(const CpuCall& call);
Status cpu_grad_scale(const CpuCall& call);
Status cpu_adamw(const CpuCall& call);

}  // namespace mbb::trainer
