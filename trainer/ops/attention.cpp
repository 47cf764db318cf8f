// Attention core and rotary embedding over packed qkv [s, b, (heads + 2·kv_heads)·d] (layout: attrs.h).
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

template <typename A>
Status check_packed(const Tensor& qkv, const A& a) {
  const int64_t want = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * a.head_dim;
  if (qkv.shape.rank() != 3 || qkv.shape[-1] != want)
    return fail(ErrorCode::kBadArgument,
                fmt::format("packed qkv is {}, last dimension must be {}", qkv.shape.str(), want));
  if (a.heads % a.kv_heads != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} heads do not divide into {} groups", a.heads, a.kv_heads));
  return {};
}

Result<std::vector<TensorSpec>> rope_shape(Inputs in, const Attrs& attrs) {
  MB_TRY(check_packed(*in[0], std::get<RopeAttrs>(attrs)));
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void rope_grad(GradContext& c) {
  RopeAttrs a = c.attrs<RopeAttrs>();
  a.inverse = !a.inverse;
  c.emit_grad(0, kRope, "bwd", {c.grad()}, a);
}

// in: qkv; out: [s, b, heads·d], log-sum-exp f32 [b, heads, s].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  MB_TRY(check_packed(*in[0], a));
  const Shape& s = in[0]->shape;
  return std::vector<TensorSpec>{{s.with_last(static_cast<int64_t>(a.heads) * a.head_dim), in[0]->dtype},
                                 {Shape{s[1], a.heads, s[0]}, DType::kF32}};
}

// in: dout, qkv, out, lse; out: dqkv.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void grad(GradContext& c) {
  c.emit_grad(0, kAttentionGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_out(0), c.saved_out(1)},
              c.attrs<AttentionAttrs>());
}

// QKᵀ and PV, halved when causal.
double core_flops(const Tensor& qkv, const AttentionAttrs& a) {
  const auto s = static_cast<double>(qkv.shape[0]);
  return 4.0 * s * s * static_cast<double>(qkv.shape[1]) * a.heads * a.head_dim * (a.causal ? 0.5 : 1.0);
}
double flops(const OpView& op) {
  return core_flops(op.in(0), std::get<AttentionAttrs>(op.op.attrs));
}
// dV, dP, dQ, dK; the recomputed QKᵀ of a flash backward is not counted (NUMERICS.md 2).
double flops_grad(const OpView& op) {
  return 2.0 * core_flops(op.in(1), std::get<AttentionAttrs>(op.op.attrs));
}

void rope_cases(std::vector<OpCase>& all) {
  all.push_back({"rope/gqa", &kRope, {{{5, 2, 64}}}, RopeAttrs{4, 2, 8, 10000.0, false}});
}
void cases(std::vector<OpCase>& all) {
  all.push_back({"attention/causal-gqa", &kAttention, {{{7, 2, 64}}}, AttentionAttrs{4, 2, 8, true, 0.35F}});
  all.push_back({"attention/full-mha", &kAttention, {{{6, 1, 48}}}, AttentionAttrs{2, 2, 8, false, 0.35F}});
}

}  // namespace

const OpKind kRope{.name = "rope",
                   .shape = rope_shape,
                   .grad = rope_grad,
                   .cpu = cpu_rope,
                   .cuda = "rope",
                   .cases = rope_cases,
                   .in_place = true};
const OpKind kAttention{.name = "attention",
                        .shape = shape,
                        .grad = grad,
                        .flops = flops,
                        .cpu = cpu_attention,
                        .cuda = "attention",
                        .cases = cases,
                        .model_flops = true};
const OpKind kAttentionGrad{.name = "attention_grad",
                            .shape = shape_grad,
                            .flops = flops_grad,
                            .cpu = cpu_attention_grad,
                            .cuda = "attention_grad",
                            .model_flops = true};

}  // namespace mbb::trainer
