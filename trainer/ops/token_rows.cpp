// Rows of (token, expert) pairs: what came back from experts in the tokens' order, summed by weight; and rows in FP8
// for the way to the experts.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: buffer [rows, h], rows i32 [tokens, k]; out: [tokens · k, h], zero where a pair was dropped.
Result<std::vector<TensorSpec>> unpermute_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[1]->shape.elements(), in[0]->shape.cols()}, in[0]->dtype}};
}
void unpermute_grad(GradContext& c) {
  c.emit_grad(0, kPermute, "bwd", {c.grad(), c.saved_in(1)}, c.op().attrs);
}

// in: x [tokens · k, h], weights f32 [tokens, k]; out: [tokens, h].
Result<std::vector<TensorSpec>> sum_shape(Inputs in, const Attrs&) {
  if (in[0]->shape[0] != in[1]->shape.elements())
    return fail(ErrorCode::kBadArgument, fmt::format("{} rows and weights {}", in[0]->shape[0], in[1]->shape.str()));
  return std::vector<TensorSpec>{{Shape{in[1]->shape[0], in[0]->shape.cols()}, in[0]->dtype}};
}
// in: dy, x, weights; out: gradients of x and weights.
Result<std::vector<TensorSpec>> sum_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}, {in[2]->shape, in[2]->dtype}};
}
void sum_grad(GradContext& c) {
  const TensorId dweights = c.declare_grad(1, "bwd.weights");
  c.emit_grad(0, kWeightedSumGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1)}, c.op().attrs,
              {.out = {kNoTensor, dweights}});
  if (c.wants(1)) c.set_grad(1, dweights);
}

// in: x [rows, h]; out: E4M3 [rows, h] and the inverse scales f32 [rows, ⌈h/128⌉] of 128 elements each.
Result<std::vector<TensorSpec>> quantize_shape(Inputs in, const Attrs&) {
  const int64_t blocks = (in[0]->shape.cols() + kTokenBlock - 1) / kTokenBlock;
  return std::vector<TensorSpec>{{in[0]->shape, DType::kE4M3}, {Shape{in[0]->shape[0], blocks}, DType::kF32}};
}
// in: E4M3 rows, their inverse scales; out: the rows in QuantizeAttrs::to.
Result<std::vector<TensorSpec>> dequantize_shape(Inputs in, const Attrs& attrs) {
  return std::vector<TensorSpec>{{in[0]->shape, std::get<QuantizeAttrs>(attrs).to}};
}
// Gradients pass by what was rounded on the way there, and come back unrounded.
void straight_through(GradContext& c) {
  c.set_grad(0, c.grad());
}

void sum_cases(std::vector<OpCase>& all) {
  all.push_back({"weighted_sum/small", &kWeightedSum, {{{6, 5}}, {{3, 2}}}, NoAttrs{}});
}
void unpermute_cases(std::vector<OpCase>& all) {
  all.push_back({"unpermute/small",
                 &kUnpermute,
                 {{{6, 5}}, {{3, 2}, DType::kI32, Fill::kDistinct, 6}},
                 DispatchAttrs{.experts = 2, .rows = 6}});
}
void quantize_cases(std::vector<OpCase>& all) {
  all.push_back({"quantize_tokens/odd", &kQuantizeTokens, {{{7, 200}}}, QuantizeAttrs{DType::kE4M3}, false});
}
void dequantize_cases(std::vector<OpCase>& all) {
  for (const DType to : {DType::kF32, DType::kBf16})
    all.push_back({std::string("dequantize_tokens/odd-") + name(to),
                   &kDequantizeTokens,
                   {{{7, 200}, DType::kE4M3}, {{7, 2}, DType::kF32, Fill::kPositive}},
                   QuantizeAttrs{to},
                   false});
}

}  // namespace

const OpKind kUnpermute{.name = "unpermute",
                        .shape = unpermute_shape,
                        .grad = unpermute_grad,
                        .cpu = cpu_unpermute,
                        .cuda = "unpermute",
                        .cases = unpermute_cases};
const OpKind kWeightedSum{.name = "weighted_sum",
                          .shape = sum_shape,
                          .grad = sum_grad,
                          .cpu = cpu_weighted_sum,
                          .cuda = "weighted_sum",
                          .cases = sum_cases};
const OpKind kWeightedSumGrad{
    .name = "weighted_sum_grad", .shape = sum_grad_shape, .cpu = cpu_weighted_sum_grad, .cuda = "weighted_sum_grad"};
const OpKind kQuantizeTokens{.name = "quantize_tokens",
                             .shape = quantize_shape,
                             .grad = straight_through,
                             .cpu = cpu_quantize_tokens,
                             .cuda = "quantize_tokens",
                             .cases = quantize_cases};
const OpKind kDequantizeTokens{.name = "dequantize_tokens",
                               .shape = dequantize_shape,
                               .grad = straight_through,
                               .cpu = cpu_dequantize_tokens,
                               .cuda = "dequantize_tokens",
                               .cases = dequantize_cases};

}  // namespace mbb::trainer
