// Tensorwise FP8: quantization with a transposed copy, alone or fused with the op that makes the values, and the scaled
// GEMM.
//
// A quantized tensor is three: q in the shape of the value, its transpose [columns, rows], and scales f32 [2] =
// {inverse scale, amax}; a copy that nothing reads is left out. GEMMs of FP8 operands are D = A·Bᵀ with both operands'
// inner dimension last, the only form Hopper has, which is why the producer makes the transpose: dgrad reads Wᵀ, wgrad
// dYᵀ and Xᵀ.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

std::vector<TensorSpec> quantized(const Shape& shape, DType dtype) {
  return {{shape, dtype}, {Shape{shape.cols(), shape.rows()}, dtype}, {Shape{2}, DType::kF32}};
}

// in: x; out: f32 [1], its largest magnitude.
Result<std::vector<TensorSpec>> amax_shape(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{1}, DType::kF32}};
}

// in: x [, amax f32 [1] of more than x: of the rows of all ranks]; out: q, qᵀ, scales.
Result<std::vector<TensorSpec>> quantize_shape(Inputs in, const Attrs& attrs) {
  const DType to = std::get<QuantizeAttrs>(attrs).to;
  if (to != DType::kE4M3 && to != DType::kE5M2)
    return fail(ErrorCode::kBadArgument, fmt::format("quantization to {}; FP8 is e4m3 or e5m2", name(to)));
  return quantized(in[0]->shape, to);
}

// in: x, scale f32 [1]; out: q, qᵀ, scales, whose amax is x's own.
Result<std::vector<TensorSpec>> delayed_shape(Inputs in, const Attrs& attrs) {
  return quantize_shape(in.first(1), attrs);
}

// in: scales of n quantized tensors [, amax]; out: amax f32 [n], of this micro-batch or of all so far.
Result<std::vector<TensorSpec>> record_shape(Inputs in, const Attrs& attrs) {
  const auto n = static_cast<int64_t>(in.size()) - (std::get<AmaxAttrs>(attrs).accumulate ? 1 : 0);
  return std::vector<TensorSpec>{{Shape{n}, DType::kF32}};
}

// in: amax f32 [n] of the step, history f32 [length, n], scale f32 [n], step record; out: history, whose row
// (step mod length) becomes amax, and scale.
Result<std::vector<TensorSpec>> update_shape(Inputs in, const Attrs&) {
  if (in[1]->shape.cols() != in[0]->shape.elements() || in[2]->shape.elements() != in[0]->shape.elements())
    return fail(ErrorCode::kBadArgument, fmt::format("amax {} for a history of {} and scales {}", in[0]->shape.str(),
                                                     in[1]->shape.str(), in[2]->shape.str()));
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}, {in[2]->shape, DType::kF32}};
}

// in: x, w; out: q, qᵀ, scales of RMSNorm(x)·w, inverse norms.
Result<std::vector<TensorSpec>> norm_shape(Inputs in, const Attrs&) {
  auto out = quantized(in[0]->shape, DType::kE4M3);
  out.push_back({Shape{in[0]->shape.rows()}, DType::kF32});
  return out;
}

// in: [.., 2f] = [gate | up]; out: q, qᵀ, scales of silu(gate)·up.
Result<std::vector<TensorSpec>> swiglu_shape(Inputs in, const Attrs&) {
  return quantized(in[0]->shape.with_last(in[0]->shape.cols() / 2), DType::kE4M3);
}

// in: dout, [gate | up]; out: q, qᵀ, scales of the gradient of [gate | up].
Result<std::vector<TensorSpec>> swiglu_grad_shape(Inputs in, const Attrs&) {
  return quantized(in[1]->shape, DType::kE5M2);
}

// in: A [m, k], B [n, k] FP8, their scales [, C]; out: D = A·Bᵀ (+ C), in attrs.out.
Result<std::vector<TensorSpec>> scaled_shape(Inputs in, const Attrs& attrs) {
  if (in[0]->shape.cols() != in[1]->shape.cols())
    return fail(ErrorCode::kBadArgument,
                fmt::format("inner dimensions differ: {} · {}ᵀ", in[0]->shape.str(), in[1]->shape.str()));
  return std::vector<TensorSpec>{{in[0]->shape.with_last(in[1]->shape.rows()), std::get<ScaledGemmAttrs>(attrs).out}};
}

double scaled_flops(const OpView& op) {
  return 2.0 * static_cast<double>(op.in(0).shape.rows()) * static_cast<double>(op.in(0).shape.cols()) *
         static_cast<double>(op.in(1).shape.rows());
}

void cases(std::vector<OpCase>& all) {
  for (const DType to : {DType::kE4M3, DType::kE5M2})
    all.push_back(
        {fmt::format("quantize/{}", name(to)), &kQuantize, {{{24, 2, 40}, DType::kBf16}}, QuantizeAttrs{to}, false});
  all.push_back({"quantize/given-amax",
                 &kQuantize,
                 {{{24, 2, 40}, DType::kBf16}, {{1}, DType::kF32, Fill::kPositive}},
                 QuantizeAttrs{DType::kE4M3},
                 false});
  all.push_back({"rmsnorm_quantize/small",
                 &kRmsNormQuantize,
                 {{{24, 2, 64}, DType::kBf16}, {{64}, DType::kBf16}},
                 NormAttrs{},
                 false});
  all.push_back({"swiglu_quantize/small", &kSwigluQuantize, {{{24, 2, 96}, DType::kBf16}}, NoAttrs{}, false});
  all.push_back({"swiglu_grad_quantize/small",
                 &kSwigluGradQuantize,
                 {{{24, 2, 48}, DType::kBf16}, {{24, 2, 96}, DType::kBf16}},
                 NoAttrs{},
                 false});
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive};
  all.push_back({"gemm_scaled/fprop",
                 &kGemmScaled,
                 {{{24, 2, 64}, DType::kE4M3}, {{80, 64}, DType::kE4M3}, scales, scales},
                 ScaledGemmAttrs{false, true, DType::kBf16},
                 false});
  all.push_back({"gemm_scaled/wgrad-accumulate",
                 &kGemmScaled,
                 {{{64, 48}, DType::kE5M2}, {{80, 48}, DType::kE4M3}, scales, scales, {{64, 80}}},
                 ScaledGemmAttrs{true, false, DType::kF32},
                 false});
}

void amax_cases(std::vector<OpCase>& all) {
  all.push_back({"amax/small", &kAmax, {{{24, 2, 40}, DType::kBf16}}, NoAttrs{}, false});
}

void delayed_cases(std::vector<OpCase>& all) {
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive};
  for (const int64_t tokens : {24, 576})
    all.push_back({tokens == 24 ? "quantize_delayed/e4m3" : "quantize_delayed/tall",
                   &kQuantizeDelayed,
                   {{{tokens, 2, 40}, DType::kBf16}, {{1}, DType::kF32, Fill::kPositive}},
                   QuantizeAttrs{DType::kE4M3},
                   false});
  all.push_back({"amax_record/first", &kAmaxRecord, {scales, scales, scales}, AmaxAttrs{false}, false});
  all.push_back({"amax_record/later",
                 &kAmaxRecord,
                 {scales, scales, {{2}, DType::kF32, Fill::kPositive}},
                 AmaxAttrs{true},
                 false});
  const CaseInput of_three{{3}, DType::kF32, Fill::kPositive};
  for (const bool most_recent : {false, true})
    all.push_back({most_recent ? "scale_update/most-recent" : "scale_update/max",
                   &kScaleUpdate,
                   {of_three, {{4, 3}, DType::kF32, Fill::kPositive}, of_three, {{4}, DType::kF32, Fill::kPositive}},
                   ScaleUpdateAttrs{DType::kE5M2, 1, most_recent},
                   false});
}

}  // namespace

const OpKind kAmax{.name = "amax", .shape = amax_shape, .cpu = cpu_amax, .cuda = "amax", .cases = amax_cases};
const OpKind kQuantize{.name = "quantize",
                       .shape = quantize_shape,
                       .cpu = cpu_quantize,
                       .cuda = "quantize",
                       .cases = cases,
                       .optional_outputs = 2};
const OpKind kQuantizeDelayed{.name = "quantize_delayed",
                              .shape = delayed_shape,
                              .cpu = cpu_quantize_delayed,
                              .cuda = "quantize_delayed",
                              .cases = delayed_cases,
                              .optional_outputs = 2};
const OpKind kAmaxRecord{.name = "amax_record", .shape = record_shape, .cpu = cpu_amax_record, .cuda = "amax_record"};
const OpKind kScaleUpdate{
    .name = "scale_update", .shape = update_shape, .cpu = cpu_scale_update, .cuda = "scale_update"};
const OpKind kRmsNormQuantize{.name = "rmsnorm_quantize",
                              .shape = norm_shape,
                              .cpu = cpu_rmsnorm_quantize,
                              .cuda = "rmsnorm_quantize",
                              .optional_outputs = 2};
const OpKind kSwigluQuantize{.name = "swiglu_quantize",
                             .shape = swiglu_shape,
                             .cpu = cpu_swiglu_quantize,
                             .cuda = "swiglu_quantize",
                             .optional_outputs = 2};
const OpKind kSwigluGradQuantize{.name = "swiglu_grad_quantize",
                                 .shape = swiglu_grad_shape,
                                 .cpu = cpu_swiglu_grad_quantize,
                                 .cuda = "swiglu_grad_quantize",
                                 .optional_outputs = 2};
const OpKind kGemmScaled{.name = "gemm_scaled",
                         .shape = scaled_shape,
                         .flops = scaled_flops,
                         .cpu = cpu_gemm_scaled,
                         .cuda = "gemm_scaled",
                         .model_flops = true};

}  // namespace mbb::trainer
