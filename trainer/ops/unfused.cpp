// Attention taken apart, as a framework without a fused kernel runs it: scores, scale and mask, softmax, context. The
// matrix of weights [b, heads, s, s] exists, and the backward reads it. No sinks and no position bias.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Status check_qkv(const Tensor& qkv, const AttentionAttrs& a) {
  const int64_t want = static_cast<int64_t>(a.heads + a.kv_heads) * a.head_dim + int64_t{a.kv_heads} * a.value_dim();
  if (qkv.shape.rank() == 3 && qkv.shape[-1] == want && a.heads % a.kv_heads == 0 && !a.has_weight()) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("packed qkv is {}, must be [s, b, {}], without sinks or position bias", qkv.shape.str(), want));
}

Status check_matrix(const Tensor& matrix, const AttentionAttrs& a) {
  const Shape& m = matrix.shape;
  if (m.rank() == 4 && m[1] == a.heads && m[2] == m[3]) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} is no [b, {}, s, s]", m.str(), a.heads));
}

Shape matrix_of(const Shape& qkv, const AttentionAttrs& a) {
  return Shape{qkv[1], a.heads, qkv[0], qkv[0]};
}

// in: qkv; out: QKᵀ, f32 [b, heads, s, s].
Result<std::vector<TensorSpec>> scores_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  MB_TRY(check_qkv(*in[0], a));
  return std::vector<TensorSpec>{{matrix_of(in[0]->shape, a), DType::kF32}};
}

// in: dscores, qkv; out: gradient of qkv, zero for the values.
Result<std::vector<TensorSpec>> scores_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void scores_grad(GradContext& c) {
  c.emit_grad(0, kAttentionScoresGrad, "bwd", {c.grad(), c.saved_in(0)}, c.op().attrs);
}

// in: scores [, starts]; out: scale · scores where the query sees the key, kMasked elsewhere.
Result<std::vector<TensorSpec>> matrix_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  MB_TRY(check_matrix(*in[0], a));
  if (in.size() != (a.packed ? 2 : 1)) return fail(ErrorCode::kBadArgument, "the mask of a pack reads its starts");
  return std::vector<TensorSpec>{{in[0]->shape, DType::kF32}};
}

void scale_mask_grad(GradContext& c) {
  std::vector<TensorId> in{c.grad()};
  if (c.attrs<AttentionAttrs>().packed) in.push_back(c.saved_in(1));
  c.emit_grad(0, kScaleMaskGrad, "bwd", in, c.op().attrs);
}

// in: masked scores; out: softmax of each row.
Result<std::vector<TensorSpec>> softmax_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, DType::kF32}};
}

// in: gradient of the weights, weights; out: gradient of what the softmax read, times the scale where it was inside.
Result<std::vector<TensorSpec>> softmax_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}};
}

void softmax_grad(GradContext& c) {
  c.emit_grad(0, kSoftmaxGrad, "bwd", {c.grad(), c.saved_out(0)}, c.op().attrs);
}
void masked_softmax_grad(GradContext& c) {
  c.emit_grad(0, kMaskedSoftmaxGrad, "bwd", {c.grad(), c.saved_out(0)}, c.op().attrs);
}

// in: weights, qkv [, samples, step record]; out: [s, b, heads·dv].
Result<std::vector<TensorSpec>> context_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  MB_TRY(check_matrix(*in[0], a));
  MB_TRY(check_qkv(*in[1], a));
  if (in.size() != (a.dropout > 0 ? 4 : 2))
    return fail(ErrorCode::kBadArgument, "dropout of attention's weights reads sample numbers and step record");
  return std::vector<TensorSpec>{{in[1]->shape.with_last(int64_t{a.heads} * a.value_dim()), in[1]->dtype}};
}

// in: dout, weights, qkv [, samples, step record]; out: gradients of weights, and of qkv, zero for queries and keys.
Result<std::vector<TensorSpec>> context_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}, {in[2]->shape, in[2]->dtype}};
}

void context_grad(GradContext& c) {
  std::vector<TensorId> in{c.grad()};
  for (size_t i = 0; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  const TensorId dqkv = c.declare_grad(1, "bwd.values");
  c.emit_grad(0, kAttentionContextGrad, "bwd", in, c.op().attrs, {.out = {kNoTensor, dqkv}});
  c.set_grad(1, dqkv);
}

// One product over the pairs that are looked at: half of all when causal, those inside the window where it cuts. The
// kernels compute all of them; model FLOPs do not count what the mask throws away (NUMERICS.md 2).
double product_flops(const Shape& qkv, const AttentionAttrs& a, int dim) {
  const auto s = static_cast<double>(qkv[0]);
  double pairs = s * s * (a.causal ? 0.5 : 1.0);
  if (a.window > 0 && a.window < qkv[0]) pairs = a.window * s - 0.5 * a.window * (a.window - 1.0);
  return 2.0 * pairs * static_cast<double>(qkv[1]) * a.heads * dim;
}
const AttentionAttrs& attrs_of(const OpView& op) {
  return std::get<AttentionAttrs>(op.op.attrs);
}
double scores_flops(const OpView& op) {
  return product_flops(op.in(0).shape, attrs_of(op), attrs_of(op).head_dim);
}
double scores_grad_flops(const OpView& op) {
  return 2.0 * product_flops(op.in(1).shape, attrs_of(op), attrs_of(op).head_dim);
}
double context_flops(const OpView& op) {
  return product_flops(op.in(1).shape, attrs_of(op), attrs_of(op).value_dim());
}
double context_grad_flops(const OpView& op) {
  return 2.0 * product_flops(op.in(2).shape, attrs_of(op), attrs_of(op).value_dim());
}

AttentionAttrs small() {
  return {4, 2, 8, true, 0.35F};
}

// Of what the mask throws away nothing is read; a pack is counted as one sequence.
double masked_bytes(const OpView& op) {
  const Tensor& matrix = op.in(0);
  const AttentionAttrs& a = attrs_of(op);
  const auto s = static_cast<double>(matrix.shape[3]), bytes = static_cast<double>(matrix.bytes());
  if (!a.causal) return 2.0 * bytes;
  double seen = 0.5 * s * (s + 1.0);
  if (a.window > 0 && a.window < matrix.shape[3]) seen = a.window * s - 0.5 * a.window * (a.window - 1.0);
  return bytes * (1.0 + seen / (s * s));
}

void scores_cases(std::vector<OpCase>& all) {
  all.push_back({"attention_scores/gqa", &kAttentionScores, {{{7, 2, 64}}}, small()});
}
void mask_cases(std::vector<OpCase>& all) {
  AttentionAttrs a = small();
  a.window = 3;
  all.push_back({"scale_mask/window", &kScaleMask, {{{2, 4, 7, 7}}}, a, false});
  all.push_back({"scale_mask_grad/window", &kScaleMaskGrad, {{{2, 4, 7, 7}}}, a, false});
}
void softmax_cases(std::vector<OpCase>& all) {
  all.push_back({"softmax/small", &kSoftmax, {{{2, 4, 7, 7}}}, small()});
}
void masked_cases(std::vector<OpCase>& all) {
  AttentionAttrs a = small();
  all.push_back({"masked_softmax/causal", &kMaskedSoftmax, {{{2, 4, 7, 7}}}, a});
  a.window = 3;
  a.packed = true;
  all.push_back(
      {"masked_softmax/packed-window", &kMaskedSoftmax, {{{1, 4, 9, 9}}, {{5}, DType::kI32, Fill::kStarts, 8}}, a});
}
void context_cases(std::vector<OpCase>& all) {
  AttentionAttrs a = small();
  a.v_head_dim = 4;
  all.push_back({"attention_context/narrow-values", &kAttentionContext, {{{2, 4, 7, 7}}, {{7, 2, 56}}}, a});
  a = small();
  a.dropout = 0.3;
  a.dropout_stream = 5;
  all.push_back({"attention_context/dropout",
                 &kAttentionContext,
                 {{{2, 4, 7, 7}},
                  {{7, 2, 64}},
                  {{2}, DType::kI32, Fill::kInts, 100},
                  {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true}},
                 a});
}

}  // namespace

const OpKind kAttentionScores{.name = "attention_scores",
                              .shape = scores_shape,
                              .grad = scores_grad,
                              .flops = scores_flops,
                              .cpu = cpu_attention_scores,
                              .cuda = "attention_scores",
                              .cases = scores_cases,
                              .model_flops = true};
const OpKind kAttentionScoresGrad{.name = "attention_scores_grad",
                                  .shape = scores_grad_shape,
                                  .flops = scores_grad_flops,
                                  .cpu = cpu_attention_scores_grad,
                                  .cuda = "attention_scores_grad",
                                  .model_flops = true};
const OpKind kScaleMask{.name = "scale_mask",
                        .shape = matrix_shape,
                        .grad = scale_mask_grad,
                        .bytes = masked_bytes,
                        .cpu = cpu_scale_mask,
                        .cuda = "scale_mask",
                        .cases = mask_cases,
                        .in_place = true};
const OpKind kScaleMaskGrad{.name = "scale_mask_grad",
                            .shape = matrix_shape,
                            .bytes = masked_bytes,
                            .cpu = cpu_scale_mask_grad,
                            .cuda = "scale_mask_grad",
                            .in_place = true};
const OpKind kSoftmax{.name = "softmax",
                      .shape = softmax_shape,
                      .grad = softmax_grad,
                      .cpu = cpu_softmax,
                      .cuda = "softmax",
                      .cases = softmax_cases};
const OpKind kSoftmaxGrad{
    .name = "softmax_grad", .shape = softmax_grad_shape, .cpu = cpu_softmax_grad, .cuda = "softmax_grad"};
const OpKind kMaskedSoftmax{.name = "masked_softmax",
                            .shape = matrix_shape,
                            .grad = masked_softmax_grad,
                            .bytes = masked_bytes,
                            .cpu = cpu_masked_softmax,
                            .cuda = "masked_softmax",
                            .cases = masked_cases};
const OpKind kMaskedSoftmaxGrad{.name = "masked_softmax_grad",
                                .shape = softmax_grad_shape,
                                .cpu = cpu_masked_softmax_grad,
                                .cuda = "masked_softmax_grad"};
const OpKind kAttentionContext{.name = "attention_context",
                               .shape = context_shape,
                               .grad = context_grad,
                               .flops = context_flops,
                               .cpu = cpu_attention_context,
                               .cuda = "attention_context",
                               .cases = context_cases,
                               .model_flops = true};
const OpKind kAttentionContextGrad{.name = "attention_context_grad",
                                   .shape = context_grad_shape,
                                   .flops = context_grad_flops,
                                   .cpu = cpu_attention_context_grad,
                                   .cuda = "attention_context_grad",
                                   .model_flops = true};

}  // namespace mbb::trainer
