// Attention in a ring of context-parallel ranks: keys and values travel from rank to rank, each rank attends to those
// it holds, and the parts are merged by their log-sum-exp (Liu et al., "Ring Attention", 2023).
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: x; out: x of the member `distance` places before this one.
Result<std::vector<TensorSpec>> shift_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

// in: out and log-sum-exp of each part, [, sinks]; out: [rows, b, heads·dv], log-sum-exp f32 [b, heads, rows].
Result<std::vector<TensorSpec>> merge_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<PartAttrs>(attrs);
  const size_t parts = a.first_rows.size();
  if (in.size() != 2 * parts + (a.sinks ? 1 : 0) || parts == 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} operands for {} parts", in.size(), parts));
  for (size_t i = 0; i < parts; ++i) {
    const Shape& out = in[2 * i]->shape;
    const Shape& lse = in[2 * i + 1]->shape;
    if (out[0] != lse[2] || a.first_rows[i] + out[0] > a.rows || out[2] % lse[1] != 0)
      return fail(ErrorCode::kBadArgument, fmt::format("part {} of {} rows from {} with log-sum-exp {} in {} rows", i,
                                                       out[0], a.first_rows[i], lse.str(), a.rows));
  }
  if (in[0]->shape[0] != a.rows)
    return fail(ErrorCode::kBadArgument, fmt::format("part 0 has {} of {} rows", in[0]->shape[0], a.rows));
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}, {in[1]->shape, DType::kF32}};
}

// in: parts [n, ..]; out: [rows, ..], their sum where they lie, zero elsewhere.
Result<std::vector<TensorSpec>> add_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<PartAttrs>(attrs);
  if (in.size() != a.first_rows.size() || in.empty())
    return fail(ErrorCode::kBadArgument, fmt::format("{} operands for {} parts", in.size(), a.first_rows.size()));
  Shape out = in[0]->shape;
  out[0] = a.rows;
  for (size_t i = 0; i < in.size(); ++i)
    if (a.first_rows[i] + in[i]->shape[0] > a.rows ||
        in[i]->shape.elements() / in[i]->shape[0] != out.elements() / a.rows)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("part {} of {} from row {} of {}", i, in[i]->shape.str(), a.first_rows[i], out.str()));
  return std::vector<TensorSpec>{{out, in[0]->dtype}};
}

// As cross attention with its own, or all gathered, keys: in: queries, key-values, extras; out: out, log-sum-exp.
Result<std::vector<TensorSpec>> ring_shape(Inputs in, const Attrs& attrs) {
  return kCrossAttention.shape(in, std::get<RingAttrs>(attrs).core);
}
Result<std::vector<TensorSpec>> ring_grad_shape(Inputs in, const Attrs& attrs) {
  return kCrossAttentionGrad.shape(in, std::get<RingAttrs>(attrs).core);
}

void ring_grad(GradContext& c) {
  const RingAttrs a = c.attrs<RingAttrs>();
  std::vector<TensorId> in{c.grad(), c.saved_in(0), c.saved_in(1), c.saved_out(0), c.saved_out(1)};
  for (size_t i = 2; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  const TensorId dq = c.declare_grad(0, "bwd.q");
  const TensorId dkv = c.declare_grad(1, "bwd.kv");
  if (!a.core.has_weight()) {
    c.emit_grad(0, kRingAttentionGrad, "bwd", in, a, {.out = {dq, dkv}});
  } else {
    c.emit_wgrad(2, kRingAttentionGrad, "bwd", in,
                 [&](bool accumulate) {
                   RingAttrs with = a;
                   with.core.accumulate = accumulate;
                   return Attrs{with};
                 },
                 0, {.out = {kNoTensor, dq, dkv}});
    c.set_grad(0, dq);
  }
  c.set_grad(1, dkv);
}

void merge_cases(std::vector<OpCase>& all) {
  all.push_back({"merge_attention/second-half",
                 &kMergeAttention,
                 {{{4, 2, 8}}, {{2, 2, 4}}, {{2, 2, 8}}, {{2, 2, 2}}},
                 PartAttrs{4, {0, 2}},
                 false});
  all.push_back({"merge_attention/sinks",
                 &kMergeAttention,
                 {{{4, 1, 8}}, {{1, 2, 4}}, {{4, 1, 8}}, {{1, 2, 4}}, {{2}}},
                 PartAttrs{4, {0, 0}, true},
                 false});
}
void add_cases(std::vector<OpCase>& all) {
  all.push_back({"add_parts/halves", &kAddParts, {{{2, 2, 8}}, {{4, 2, 8}}}, PartAttrs{6, {4, 1}}, false});
}

}  // namespace

const OpKind kRingShift{
    .name = "ring_shift", .shape = shift_shape, .cpu = cpu_ring_shift, .cuda = "ring_shift", .communicates = true};
const OpKind kMergeAttention{.name = "merge_attention",
                             .shape = merge_shape,
                             .cpu = cpu_merge_attention,
                             .cuda = "merge_attention",
                             .cases = merge_cases};
const OpKind kAddParts{
    .name = "add_parts", .shape = add_shape, .cpu = cpu_add_parts, .cuda = "add_parts", .cases = add_cases};
const OpKind kRingAttention{.name = "ring_attention", .shape = ring_shape, .grad = ring_grad};
const OpKind kRingAttentionGrad{.name = "ring_attention_grad", .shape = ring_grad_shape};

}  // namespace mbb::trainer
