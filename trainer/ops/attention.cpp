// Attention core over packed qkv, or over queries and packed key-values (layouts and extra operands: attrs.h).
#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Status check_last(const Tensor& tensor, int64_t want, const char* what) {
  if (tensor.shape.rank() == 3 && tensor.shape[-1] == want) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} is {}, must be [s, b, {}]", what, tensor.shape.str(), want));
}

// Operands from `first` on: sinks or bias table, samples and step record, `packs` starts of packs.
Status check_extras(Inputs in, const AttentionAttrs& a, size_t first, size_t packs = 1) {
  if (a.heads % a.kv_heads != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} heads do not divide into {} groups", a.heads, a.kv_heads));
  const size_t want = first + (a.has_weight() ? 1 : 0) + (a.dropout > 0 ? 2 : 0) + (a.packed ? packs : 0);
  if (in.size() != want)
    return fail(ErrorCode::kBadArgument, fmt::format("attention has {} operands, not {}", in.size(), want));
  if (a.packed && in[0]->shape[1] != 1)
    return fail(ErrorCode::kBadArgument, "a pack of sequences is alone in its micro-batch");
  const int64_t elements = int64_t{a.tp_heads()} * (a.sinks ? 1 : a.relative_buckets);
  if (a.has_weight() && in[first]->shape.elements() != elements)
    return fail(ErrorCode::kBadArgument,
                fmt::format("sinks or bias table has {}, must have {} elements", in[first]->shape.str(), elements));
  return {};
}

std::vector<TensorSpec> outputs(const Tensor& q, const AttentionAttrs& a) {
  return {{q.shape.with_last(static_cast<int64_t>(a.heads) * a.value_dim()), q.dtype},
          {Shape{q.shape[1], a.heads, q.shape[0]}, DType::kF32}};
}

// in: qkv, extras; out: [s, b, heads·dv], log-sum-exp f32 [b, heads, s].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  const int64_t want = static_cast<int64_t>(a.heads + a.kv_heads) * a.head_dim + int64_t{a.kv_heads} * a.value_dim();
  MB_TRY(check_last(*in[0], want, "packed qkv"));
  MB_TRY(check_extras(in, a, 1));
  return outputs(*in[0], a);
}

// in: dout, qkv, out, lse, extras [, main grad]; out: [main grad of sinks or bias table (f32),] dqkv.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs& attrs) {
  const TensorSpec dqkv{in[1]->shape, in[1]->dtype};
  if (!std::get<AttentionAttrs>(attrs).has_weight()) return std::vector<TensorSpec>{dqkv};
  return std::vector<TensorSpec>{{in[4]->shape, DType::kF32}, dqkv};
}

void grad(GradContext& c) {
  const AttentionAttrs a = c.attrs<AttentionAttrs>();
  std::vector<TensorId> in{c.grad(), c.saved_in(0), c.saved_out(0), c.saved_out(1)};
  for (size_t i = 1; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  if (!a.has_weight()) {
    c.emit_grad(0, kAttentionGrad, "bwd", in, a);
    return;
  }
  const TensorId dqkv = c.declare_grad(0, "bwd");
  c.emit_wgrad(1, kAttentionGrad, "bwd", in,
               [&](bool accumulate) {
                 AttentionAttrs with = a;
                 with.accumulate = accumulate;
                 return Attrs{with};
               },
               0, {.out = {kNoTensor, dqkv}});
  c.set_grad(0, dqkv);
}

// in: queries [sq, b, heads·d], key-values [sk, b, kv_heads·(d + dv)], extras; out as above.
Result<std::vector<TensorSpec>> cross_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  MB_TRY(check_last(*in[0], int64_t{a.heads} * a.head_dim, "queries"));
  MB_TRY(check_last(*in[1], int64_t{a.kv_heads} * (a.head_dim + a.value_dim()), "key-values"));
  MB_TRY(check_extras(in, a, 2, a.causal ? 1 : 2));
  return outputs(*in[0], a);
}

// in: dout, queries, key-values, out, lse, extras [, main grad]; out: [main grad of sinks or bias table (f32),]
// gradients of queries and key-values.
Result<std::vector<TensorSpec>> cross_shape_grad(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<AttentionAttrs>(attrs);
  if (in[4]->shape[2] < a.first_query + in[1]->shape[0])
    return fail(ErrorCode::kBadArgument, fmt::format("{} queries from row {} of log-sum-exp {}", in[1]->shape[0],
                                                     a.first_query, in[4]->shape.str()));
  std::vector<TensorSpec> out{{in[1]->shape, in[1]->dtype}, {in[2]->shape, in[2]->dtype}};
  if (a.has_weight()) out.insert(out.begin(), {in[5]->shape, DType::kF32});
  return out;
}

void cross_grad(GradContext& c) {
  const AttentionAttrs a = c.attrs<AttentionAttrs>();
  std::vector<TensorId> in{c.grad(), c.saved_in(0), c.saved_in(1), c.saved_out(0), c.saved_out(1)};
  for (size_t i = 2; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  const TensorId dkv = c.declare_grad(1, "bwd.kv");
  if (!a.has_weight()) {
    c.emit_grad(0, kCrossAttentionGrad, "bwd", in, a, {.out = {kNoTensor, dkv}});
    c.set_grad(1, dkv);
    return;
  }
  const TensorId dq = c.declare_grad(0, "bwd.q");
  c.emit_wgrad(2, kCrossAttentionGrad, "bwd", in,
               [&](bool accumulate) {
                 AttentionAttrs with = a;
                 with.accumulate = accumulate;
                 return Attrs{with};
               },
               0, {.out = {kNoTensor, dq, dkv}});
  c.set_grad(0, dq);
  c.set_grad(1, dkv);
}

// QKᵀ and PV of a pack count as of one sequence: how it is cut is known when the step runs only.
// Over the pairs that are looked at: half of all when causal, those inside the window where it cuts.
double core_flops(const Shape& q, int64_t keys, const AttentionAttrs& a) {
  const auto s = static_cast<double>(q[0]);
  double pairs = s * static_cast<double>(keys) * (a.causal ? 0.5 : 1.0);
  if (a.causal && !a.keys.whole())
    pairs = visible_pairs(a.queries, q[0], a.keys, keys, a.window);
  else if (a.window > 0 && a.window < q[0])
    pairs = a.window * s - 0.5 * a.window * (a.window - 1.0);
  return 2.0 * pairs * static_cast<double>(q[1]) * a.heads * (a.head_dim + a.value_dim());
}
double flops(const OpView& op) {
  return core_flops(op.in(0).shape, op.in(0).shape[0], std::get<AttentionAttrs>(op.op.attrs));
}
// dV, dP, dQ, dK; the recomputed QKᵀ of a flash backward is not counted (NUMERICS.md 2).
double flops_grad(const OpView& op) {
  return 2.0 * core_flops(op.in(1).shape, op.in(1).shape[0], std::get<AttentionAttrs>(op.op.attrs));
}
double cross_flops(const OpView& op) {
  return core_flops(op.in(0).shape, op.in(1).shape[0], std::get<AttentionAttrs>(op.op.attrs));
}
double cross_flops_grad(const OpView& op) {
  return 2.0 * core_flops(op.in(1).shape, op.in(2).shape[0], std::get<AttentionAttrs>(op.op.attrs));
}

void cases(std::vector<OpCase>& all) {
  const CaseInput samples{{2}, DType::kI32, Fill::kInts, 100};
  const CaseInput record{{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true};
  const auto weight = [](Shape of) { return CaseInput{of, DType::kF32, Fill::kNormal, 0, true}; };
  const AttentionAttrs base{4, 2, 8, true, 0.35F};
  all.push_back({"attention/causal-gqa", &kAttention, {{{7, 2, 64}}}, base});
  all.push_back({"attention/full-mha", &kAttention, {{{6, 1, 48}}}, AttentionAttrs{2, 2, 8, false, 0.35F}});
  AttentionAttrs a = base;
  a.v_head_dim = 4;
  all.push_back({"attention/narrow-values", &kAttention, {{{7, 2, 56}}}, a});
  a = base;
  a.window = 3;
  all.push_back({"attention/window", &kAttention, {{{9, 2, 64}}}, a});
  a.sinks = true;
  all.push_back({"attention/window-sinks", &kAttention, {{{9, 1, 64}}, weight({4})}, a});
  a = base;
  a.relative_buckets = 8;
  a.relative_max_distance = 16;
  all.push_back({"attention/relative-causal", &kAttention, {{{9, 1, 64}}, weight({4, 8})}, a});
  a.causal = false;
  all.push_back({"attention/relative-both-ways", &kAttention, {{{9, 1, 64}}, weight({4, 8})}, a});
  a = base;
  a.dropout = 0.3;
  a.dropout_stream = 5;
  all.push_back({"attention/dropout", &kAttention, {{{7, 2, 64}}, samples, record}, a});
  a = base;
  a.packed = true;
  const CaseInput starts{{6}, DType::kI32, Fill::kStarts, 9};
  all.push_back({"attention/packed", &kAttention, {{{11, 1, 64}}, starts}, a});
  a.window = 2;
  a.sinks = true;
  all.push_back({"attention/packed-window-sinks", &kAttention, {{{11, 1, 64}}, weight({4}), starts}, a});
  a = base;
  a.packed = true;
  a.causal = false;
  a.relative_buckets = 8;
  a.relative_max_distance = 16;
  all.push_back({"attention/packed-both-ways", &kAttention, {{{11, 1, 64}}, weight({4, 8}), starts}, a});
}

void cross_cases(std::vector<OpCase>& all) {
  all.push_back(
      {"cross_attention/gqa", &kCrossAttention, {{{5, 2, 32}}, {{7, 2, 32}}}, AttentionAttrs{4, 2, 8, false, 0.35F}});
  // The second of two context-parallel ranks over the keys of both.
  AttentionAttrs a{4, 2, 8, true, 0.35F};
  a.queries = context_positions(12, 2, 1);
  a.keys = gathered_positions(12, 2);
  all.push_back({"cross_attention/context", &kCrossAttention, {{{6, 2, 32}}, {{12, 2, 32}}}, a});
  a.window = 4;
  a.sinks = true;
  all.push_back({"cross_attention/context-window-sinks",
                 &kCrossAttention,
                 {{{6, 1, 32}}, {{12, 1, 32}}, {{4}, DType::kF32, Fill::kNormal, 0, true}},
                 a});
  const auto starts = [](int64_t tokens) { return CaseInput{{5}, DType::kI32, Fill::kStarts, tokens}; };
  AttentionAttrs packs{4, 2, 8, false, 0.35F};
  packs.packed = true;
  all.push_back(
      {"cross_attention/packed", &kCrossAttention, {{{9, 1, 32}}, {{11, 1, 32}}, starts(8), starts(10)}, packs});
  // The second of two context-parallel ranks; sequences of a pack are multiples of four.
  packs.causal = true;
  packs.queries = context_positions(12, 2, 1);
  packs.keys = gathered_positions(12, 2);
  const CaseInput one{{3}, DType::kI32, Fill::kStarts, 12};
  all.push_back({"cross_attention/packed-context", &kCrossAttention, {{{6, 1, 32}}, {{12, 1, 32}}, one}, packs});
  AttentionAttrs heads{2, 1, 8, true, 0.35F};
  heads.sinks = true;
  heads.first_head = 2;
  heads.all_heads = 4;
  all.push_back({"cross_attention/some-heads",
                 &kCrossAttention,
                 {{{6, 1, 16}}, {{6, 1, 16}}, {{4}, DType::kF32, Fill::kNormal, 0, true}},
                 heads});
}

}  // namespace

const char* name(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kAuto: return "auto";
    case AttentionBackend::kFlash: return "flash";
    case AttentionBackend::kFused: return "fused";
    case AttentionBackend::kUnfused: return "unfused";
  }
  return "?";
}

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
const OpKind kCrossAttention{.name = "cross_attention",
                             .shape = cross_shape,
                             .grad = cross_grad,
                             .flops = cross_flops,
                             .cpu = cpu_cross_attention,
                             .cuda = "cross_attention",
                             .cases = cross_cases,
                             .model_flops = true};
const OpKind kCrossAttentionGrad{.name = "cross_attention_grad",
                                 .shape = cross_shape_grad,
                                 .flops = cross_flops_grad,
                                 .cpu = cpu_cross_attention_grad,
                                 .cuda = "cross_attention_grad",
                                 .model_flops = true};

}  // namespace mbb::trainer
