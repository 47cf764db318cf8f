// Fused ops that the fusion pass puts in place of pairs: residual sums inside GEMMs and norm gradients, SwiGLU and its
// gradient inside the GEMMs before them, cross entropy in one.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: A, B, C; out: op(A)·op(B) + C.
Result<std::vector<TensorSpec>> gemm_add_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(auto out, kGemm.shape(in, attrs));
  if (in[2]->shape.elements() != out[0].shape.elements())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is added to a product of {}", in[2]->shape.str(), out[0].shape.str()));
  return out;
}

// in: A, B FP8, their scales, C; out: A·Bᵀ + C.
Result<std::vector<TensorSpec>> scaled_add_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(auto out, kGemmScaled.shape(in, attrs));
  if (in[4]->shape.elements() != out[0].shape.elements())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is added to a product of {}", in[4]->shape.str(), out[0].shape.str()));
  return out;
}

double gemm_flops(const OpView& op) {
  return kGemm.flops(op);
}
double scaled_flops(const OpView& op) {
  return kGemmScaled.flops(op);
}

// in: dy, x, w, inverse norms, gradient of the residual [, main grad]; out: main grad of w (f32), dx + that gradient.
Result<std::vector<TensorSpec>> norm_grad_shape(Inputs in, const Attrs& attrs) {
  return kRmsNormGrad.shape(in, attrs);
}

// in: logits [s, b, v] (the whole vocabulary), labels i32; out: gradient of the summed loss, f32 [2, s·b] as
// cross_entropy_sum.
Result<std::vector<TensorSpec>> cross_entropy_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}, {Shape{2, in[0]->shape.rows()}, DType::kF32}};
}

// in: x [.., h], w [2 f, h]; out: gates and ups [.., 2 f], silu(gate) · up [.., f].
Result<std::vector<TensorSpec>> gemm_swiglu_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(auto out, kGemm.shape(in, attrs));
  if (out[0].shape.cols() % 2 != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("a product of {} columns holds no gates and ups", out[0].shape.cols()));
  out.push_back({out[0].shape.with_last(out[0].shape.cols() / 2), out[0].dtype});
  return out;
}

// in: dy [.., h], w [h, f], gates and ups [.., 2 f]; out: their gradient, that of silu(gate) · up being dy · w.
Result<std::vector<TensorSpec>> gemm_swiglu_grad_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(const auto product, kGemm.shape(in, attrs));
  if (in[2]->shape.elements() != 2 * product[0].shape.elements())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} are no gates and ups of {}", in[2]->shape.str(), product[0].shape.str()));
  return std::vector<TensorSpec>{{in[2]->shape, in[2]->dtype}};
}

double gemm_swiglu_grad_flops(const OpView& op) {
  return 2.0 * static_cast<double>(op.in(0).shape.elements()) * static_cast<double>(op.in(1).shape.cols());
}

double logits_twice(const OpView& op) {
  return 2.0 * static_cast<double>(op.in(0).bytes());
}

void cases(std::vector<OpCase>& all) {
  all.push_back(
      {"gemm_add/linear", &kGemmAdd, {{{6, 2, 24}}, {{40, 24}}, {{6, 2, 40}}}, GemmAttrs{false, true, false}, false});
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive};
  all.push_back({"gemm_scaled_add/fprop",
                 &kGemmScaledAdd,
                 {{{24, 2, 64}, DType::kE4M3}, {{80, 64}, DType::kE4M3}, scales, scales, {{24, 2, 80}, DType::kBf16}},
                 ScaledGemmAttrs{false, true, DType::kBf16},
                 false});
  all.push_back({"gemm_swiglu/small", &kGemmSwiglu, {{{6, 2, 24}}, {{40, 24}}}, GemmAttrs{false, true, false}, false});
  all.push_back({"gemm_swiglu_grad/small",
                 &kGemmSwigluGrad,
                 {{{6, 2, 24}}, {{24, 20}}, {{6, 2, 40}}},
                 GemmAttrs{false, false, false},
                 false});
  all.push_back({"rmsnorm_grad_add/small",
                 &kRmsNormGradAdd,
                 {{{5, 2, 16}}, {{5, 2, 16}}, {{16}}, {{10}, DType::kF32, Fill::kPositive}, {{5, 2, 16}}},
                 NormAttrs{},
                 false});
  all.push_back({"cross_entropy_fused/small",
                 &kCrossEntropyFused,
                 {{{5, 2, 11}}, {{5, 2}, DType::kI32, Fill::kInts, 11}},
                 NoAttrs{},
                 false});
}

}  // namespace

const OpKind kGemmAdd{.name = "gemm_add",
                      .shape = gemm_add_shape,
                      .flops = gemm_flops,
                      .cpu = cpu_gemm_add,
                      .cuda = "gemm_add",
                      .cases = cases,
                      .model_flops = true};
const OpKind kGemmSwiglu{.name = "gemm_swiglu",
                         .shape = gemm_swiglu_shape,
                         .flops = gemm_flops,
                         .cpu = cpu_gemm_swiglu,
                         .cuda = "gemm_swiglu",
                         .model_flops = true};
const OpKind kGemmSwigluGrad{.name = "gemm_swiglu_grad",
                             .shape = gemm_swiglu_grad_shape,
                             .flops = gemm_swiglu_grad_flops,
                             .cpu = cpu_gemm_swiglu_grad,
                             .cuda = "gemm_swiglu_grad",
                             .model_flops = true};
const OpKind kGemmScaledAdd{.name = "gemm_scaled_add",
                            .shape = scaled_add_shape,
                            .flops = scaled_flops,
                            .cpu = cpu_gemm_scaled_add,
                            .cuda = "gemm_scaled_add",
                            .model_flops = true};
const OpKind kRmsNormGradAdd{
    .name = "rmsnorm_grad_add", .shape = norm_grad_shape, .cpu = cpu_rmsnorm_grad_add, .cuda = "rmsnorm_grad_add"};
const OpKind kCrossEntropyFused{.name = "cross_entropy_fused",
                                .shape = cross_entropy_shape,
                                .bytes = logits_twice,
                                .cpu = cpu_cross_entropy_fused,
                                .cuda = "cross_entropy_fused",
                                .in_place = true};

}  // namespace mbb::trainer
