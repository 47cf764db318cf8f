// RMSNorm over the last dimension: y = x / sqrt(mean(x²) + eps) · w. The inverse norm of each row is kept for the
// backward.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs&) {
  if (in[1]->shape.elements() != in[0]->shape.cols())
    return fail(ErrorCode::kBadArgument,
                "norm weight has " + in[1]->shape.str() + " for rows of " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}, {Shape{in[0]->shape.rows()}, DType::kF32}};
}

// in: dy, x, w, inverse norms [, main grad]; out: main grad of w (f32), dx.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[2]->shape, DType::kF32}, {in[1]->shape, in[1]->dtype}};
}

void grad(GradContext& c) {
  const NormAttrs a = c.attrs<NormAttrs>();
  const TensorId dx = c.declare_grad(0, "bwd");
  c.emit_wgrad(1, kRmsNormGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1), c.saved_out(1)},
               [&](bool accumulate) {
                 return Attrs{NormAttrs{a.eps, accumulate}};
               },
               0, {.out = {kNoTensor, dx}});
  c.set_grad(0, dx);
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"rmsnorm/small", &kRmsNorm, {{{5, 2, 16}}, {{16}, DType::kF32, Fill::kNormal, 0, true}}, NormAttrs{}});
  all.push_back(
      {"rmsnorm/odd", &kRmsNorm, {{{3, 1, 37}}, {{37}, DType::kF32, Fill::kNormal, 0, true}}, NormAttrs{1e-6F, false}});
}

}  // namespace

const OpKind kRmsNorm{
    .name = "rmsnorm", .shape = shape, .grad = grad, .cpu = cpu_rmsnorm, .cuda = "rmsnorm", .cases = cases};
const OpKind kRmsNormGrad{.name = "rmsnorm_grad", .shape = shape_grad, .cpu = cpu_rmsnorm_grad, .cuda = "rmsnorm_grad"};

}  // namespace mbb::trainer
