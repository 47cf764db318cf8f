// Tokens to expert buffers and back, and the matrix products of experts. Buffers have static rows; which rows an expert
// owns and fills is a tensor: segments i32 [2, experts], first row and count; of what other ranks sent, [2, pieces],
// one for each source and expert, until those of an expert are merged. Rows nobody fills are zero.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: experts i32 [tokens, k] (-1: dropped before), weights f32 [tokens, k]; out: rows i32 [tokens, k] (-1: dropped),
// segments.
Result<std::vector<TensorSpec>> plan_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<DispatchAttrs>(attrs);
  const int64_t least = a.capacity > 0 ? a.experts * a.capacity : in[0]->shape.elements();
  if (a.peers == 1 && a.rows < least)
    return fail(ErrorCode::kBadArgument, fmt::format("an expert buffer of {} rows, {} are needed", a.rows, least));
  if (a.rows % a.peers != 0 || a.experts % a.peers != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} rows of {} experts for {} peers", a.rows, a.experts, a.peers));
  return std::vector<TensorSpec>{{in[0]->shape, DType::kI32}, {Shape{2, a.experts}, DType::kI32}};
}

// in: experts i32 [tokens, k] of this rank; rows i32 [TP · tokens, k] of a plan over all TP ranks' tokens, in rank
// order; out: the experts, -1 where the plan dropped the pair.
Result<std::vector<TensorSpec>> kept_shape(Inputs in, const Attrs&) {
  if (in[0]->shape.cols() != in[1]->shape.cols() || in[1]->shape[0] % in[0]->shape[0] != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("experts {} of a plan of {}", in[0]->shape.str(), in[1]->shape.str()));
  return std::vector<TensorSpec>{{in[0]->shape, DType::kI32}};
}

// in: segments, pieces of experts in turn; out: rows i32 [rows, 1], where each row of the buffer goes so that every
// expert has one piece (-1: nobody filled it), and the segments of those pieces.
Result<std::vector<TensorSpec>> merge_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<DispatchAttrs>(attrs);
  if (in[0]->shape[1] % a.experts != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} pieces of {} experts", in[0]->shape[1], a.experts));
  return std::vector<TensorSpec>{{Shape{a.rows, 1}, DType::kI32}, {Shape{2, a.experts}, DType::kI32}};
}

// in: x [.., h], rows; out: buffer [rows, h].
Result<std::vector<TensorSpec>> permute_shape(Inputs in, const Attrs& attrs) {
  return std::vector<TensorSpec>{{Shape{std::get<DispatchAttrs>(attrs).rows, in[0]->shape.cols()}, in[0]->dtype}};
}
// in: gradient of the buffer, rows; out: dx.
Result<std::vector<TensorSpec>> permute_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[1]->shape[0], in[0]->shape.cols()}, in[0]->dtype}};
}
void permute_grad(GradContext& c) {
  const TensorId dx = c.declare_grad(0, "bwd");
  c.emit_grad(0, kPermuteGrad, "bwd", {c.grad(), c.saved_in(1)}, c.op().attrs, {.out = {dx}});
}

// in: buffer [rows, h], rows, weights; out: [tokens, h], the weighted sum of what a token's experts gave.
Result<std::vector<TensorSpec>> combine_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[1]->shape[0], in[0]->shape.cols()}, in[0]->dtype}};
}
// in: dy, buffer, rows, weights; out: gradients of buffer and weights.
Result<std::vector<TensorSpec>> combine_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}, {in[3]->shape, in[3]->dtype}};
}
void combine_grad(GradContext& c) {
  const TensorId dweights = c.declare_grad(2, "bwd.weights");
  c.emit_grad(0, kCombineGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1), c.saved_in(2)}, c.op().attrs,
              {.out = {kNoTensor, dweights}});
  if (c.wants(2)) c.set_grad(2, dweights);
}

// in: segments; out: their counts i32 [pieces].
Result<std::vector<TensorSpec>> counts_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[0]->shape[1]}, DType::kI32}};
}

// in: counts i32, by member, source and expert; out: segments i32 [2, pieces], the pieces in the order of the counts.
Result<std::vector<TensorSpec>> receive_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ReceiveAttrs>(attrs);
  if (in[0]->shape.elements() % (a.members * a.experts) != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} counts of {} members and {} experts", in[0]->shape.elements(), a.members, a.experts));
  return std::vector<TensorSpec>{{Shape{2, in[0]->shape.elements()}, DType::kI32}};
}

// in: buffer [rows, k], weights [experts, n, k], segments; out: [rows, n].
Result<std::vector<TensorSpec>> gemm_shape(Inputs in, const Attrs&) {
  if (in[1]->shape.rank() != 3 || in[0]->shape.cols() != in[1]->shape[2] || in[2]->shape[1] != in[1]->shape[0])
    return fail(ErrorCode::kBadArgument, "grouped product of " + in[0]->shape.str() + " and " + in[1]->shape.str());
  return std::vector<TensorSpec>{{Shape{in[0]->shape[0], in[1]->shape[1]}, in[0]->dtype}};
}
// in: dy [rows, n], weights, segments; out: dx [rows, k].
Result<std::vector<TensorSpec>> dgrad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[0]->shape[0], in[1]->shape[2]}, in[0]->dtype}};
}
// in: dy [rows, n], x [rows, k], segments [, main grad]; out: main grad f32 [experts, n, k].
Result<std::vector<TensorSpec>> wgrad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[2]->shape[1], in[0]->shape.cols(), in[1]->shape.cols()}, DType::kF32}};
}
void gemm_grad(GradContext& c) {
  const GroupedGemmAttrs a = c.attrs<GroupedGemmAttrs>();
  if (c.wants(0))
    c.emit_grad(0, kGroupedGemmDgrad, "dgrad", {c.grad(), c.saved_in(1), c.saved_in(2)}, a, {.role = Role::kDgrad});
  c.emit_wgrad(1, kGroupedGemmWgrad, "wgrad", {c.grad(), c.saved_in(0), c.saved_in(2)}, [&](bool accumulate) {
    return Attrs{GroupedGemmAttrs{a.useful_rows, accumulate, a.experts}};
  });
}
double gemm_flops(const OpView& op) {
  return 2.0 * static_cast<double>(std::get<GroupedGemmAttrs>(op.op.attrs).useful_rows) *
         static_cast<double>(op.in(1).shape[1] * op.in(1).shape[2]);
}
double wgrad_flops(const OpView& op) {
  return 2.0 * static_cast<double>(std::get<GroupedGemmAttrs>(op.op.attrs).useful_rows) *
         static_cast<double>(op.in(0).shape.cols() * op.in(1).shape.cols());
}

// in: y [rows, n], b [experts, n], segments; out: y + scale · b of the row's expert.
Result<std::vector<TensorSpec>> bias_shape(Inputs in, const Attrs&) {
  if (in[1]->shape.cols() != in[0]->shape.cols() || in[1]->shape[0] != in[2]->shape[1])
    return fail(ErrorCode::kBadArgument, "grouped bias " + in[1]->shape.str() + " for " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}
// in: dy, segments [, main grad]; out: main grad f32 [experts, n].
Result<std::vector<TensorSpec>> bias_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[1]->shape[1], in[0]->shape.cols()}, DType::kF32}};
}
void bias_grad(GradContext& c) {
  GroupedBiasAttrs a = c.attrs<GroupedBiasAttrs>();
  c.emit_wgrad(1, kGroupedBiasGrad, "wgrad", {c.grad(), c.saved_in(2)}, [&](bool accumulate) {
    a.accumulate = accumulate;
    return Attrs{a};
  });
  if (c.wants(0)) c.set_grad(0, c.grad());
}

// Three tokens of two experts each: rows and segments as a plan would write them.
void permute_cases(std::vector<OpCase>& all) {
  all.push_back({"permute/small",
                 &kPermute,
                 {{{3, 1, 5}}, {{3, 2}, DType::kI32, Fill::kDistinct, 6}},
                 DispatchAttrs{.experts = 2, .rows = 6}});
}
void combine_cases(std::vector<OpCase>& all) {
  all.push_back({"combine/small",
                 &kCombine,
                 {{{6, 5}}, {{3, 2}, DType::kI32, Fill::kDistinct, 6}, {{3, 2}}},
                 DispatchAttrs{.experts = 2, .rows = 6}});
}
void kept_cases(std::vector<OpCase>& all) {
  all.push_back({"kept_experts/some",
                 &kKeptExperts,
                 {{{5, 2}, DType::kI32, Fill::kInts, 4}, {{10, 2}, DType::kI32, Fill::kDropped, 9}},
                 NoAttrs{},
                 false});
}
// Two members of the tensor group, two sources, three experts; in slots and packed.
void receive_cases(std::vector<OpCase>& all) {
  const CaseInput counts{{12}, DType::kI32, Fill::kInts, 4};
  ReceiveAttrs a{.members = 2, .experts = 3, .member_rows = 24, .slot_rows = 12};
  all.push_back({"receive_plan/slots", &kReceivePlan, {counts}, a, false});
  a.slot_rows = 0;
  all.push_back({"receive_plan/packed", &kReceivePlan, {counts}, a, false});
  all.push_back(
      {"segment_counts/three", &kSegmentCounts, {{{2, 3}, DType::kI32, Fill::kSegments, 9}}, NoAttrs{}, false});
}
void merge_cases(std::vector<OpCase>& all) {
  all.push_back({"merge_pieces/three-of-two-sources",
                 &kMergePieces,
                 {{{2, 6}, DType::kI32, Fill::kSegments, 9}},
                 DispatchAttrs{.experts = 3, .rows = 12},
                 false});
}
const CaseInput kThreeSegments{{2, 3}, DType::kI32, Fill::kSegments, 9};
void gemm_cases(std::vector<OpCase>& all) {
  all.push_back({"grouped_gemm/three",
                 &kGroupedGemm,
                 {{{9, 7}}, {{3, 5, 7}, DType::kF32, Fill::kNormal, 0, true}, kThreeSegments},
                 GroupedGemmAttrs{.useful_rows = 9}});
}
void bias_cases(std::vector<OpCase>& all) {
  all.push_back({"grouped_bias/three",
                 &kGroupedBias,
                 {{{9, 7}}, {{3, 7}, DType::kF32, Fill::kNormal, 0, true}, kThreeSegments},
                 GroupedBiasAttrs{.scale = 0.5F, .gradient = 0.5F}});
}

}  // namespace

const OpKind kDispatchPlan{
    .name = "dispatch_plan", .shape = plan_shape, .cpu = cpu_dispatch_plan, .cuda = "dispatch_plan"};
const OpKind kKeptExperts{
    .name = "kept_experts", .shape = kept_shape, .cpu = cpu_kept_experts, .cuda = "kept_experts", .cases = kept_cases};
const OpKind kSegmentCounts{
    .name = "segment_counts", .shape = counts_shape, .cpu = cpu_segment_counts, .cuda = "segment_counts"};
const OpKind kReceivePlan{.name = "receive_plan",
                          .shape = receive_shape,
                          .cpu = cpu_receive_plan,
                          .cuda = "receive_plan",
                          .cases = receive_cases};
const OpKind kMergePieces{.name = "merge_pieces",
                          .shape = merge_shape,
                          .cpu = cpu_merge_pieces,
                          .cuda = "merge_pieces",
                          .cases = merge_cases};
const OpKind kPermute{.name = "permute",
                      .shape = permute_shape,
                      .grad = permute_grad,
                      .cpu = cpu_permute,
                      .cuda = "permute",
                      .cases = permute_cases};
const OpKind kPermuteGrad{
    .name = "permute_grad", .shape = permute_grad_shape, .cpu = cpu_permute_grad, .cuda = "permute_grad"};
const OpKind kCombine{.name = "combine",
                      .shape = combine_shape,
                      .grad = combine_grad,
                      .cpu = cpu_combine,
                      .cuda = "combine",
                      .cases = combine_cases};
const OpKind kCombineGrad{
    .name = "combine_grad", .shape = combine_grad_shape, .cpu = cpu_combine_grad, .cuda = "combine_grad"};
const OpKind kGroupedGemm{.name = "grouped_gemm",
                          .shape = gemm_shape,
                          .grad = gemm_grad,
                          .flops = gemm_flops,
                          .cpu = cpu_grouped_gemm,
                          .cuda = "grouped_gemm",
                          .cases = gemm_cases,
                          .model_flops = true};
const OpKind kGroupedGemmDgrad{.name = "grouped_gemm_dgrad",
                               .shape = dgrad_shape,
                               .flops = gemm_flops,
                               .cpu = cpu_grouped_gemm_dgrad,
                               .cuda = "grouped_gemm_dgrad",
                               .model_flops = true};
const OpKind kGroupedGemmWgrad{.name = "grouped_gemm_wgrad",
                               .shape = wgrad_shape,
                               .flops = wgrad_flops,
                               .cpu = cpu_grouped_gemm_wgrad,
                               .cuda = "grouped_gemm_wgrad",
                               .model_flops = true};
const OpKind kGroupedBias{.name = "grouped_bias",
                          .shape = bias_shape,
                          .grad = bias_grad,
                          .cpu = cpu_grouped_bias,
                          .cuda = "grouped_bias",
                          .cases = bias_cases,
                          .in_place = true};
const OpKind kGroupedBiasGrad{
    .name = "grouped_bias_grad", .shape = bias_grad_shape, .cpu = cpu_grouped_bias_grad, .cuda = "grouped_bias_grad"};

}  // namespace mbb::trainer
