// LayerNorm over the last dimension: y = (x − mean) / sqrt(variance + eps) · w + b, or · (1 + w) + b. Mean and inverse
// deviation of each row are kept for the backward.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: x, w, b; out: y, statistics f32 [2, rows].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs&) {
  for (size_t i = 1; i < 3; ++i)
    if (in[i]->shape.elements() != in[0]->shape.cols())
      return fail(ErrorCode::kBadArgument,
                  "LayerNorm parameter has " + in[i]->shape.str() + " for rows of " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}, {Shape{2, in[0]->shape.rows()}, DType::kF32}};
}

// in: dy, x, w, b (for its extent), statistics [, main grads]; out: main grads of w and b (f32), dx.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{
      {in[2]->shape, DType::kF32}, {in[3]->shape, DType::kF32}, {in[1]->shape, in[1]->dtype}};
}

void grad(GradContext& c) {
  const NormAttrs a = c.attrs<NormAttrs>();
  const TensorId dx = c.declare_grad(0, "bwd");
  c.emit_wgrads({1, 2}, kLayerNormGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1), c.saved_in(2), c.saved_out(1)},
                [&](bool accumulate) {
                  return Attrs{NormAttrs{a.eps, accumulate, a.one_plus}};
                },
                {.out = {kNoTensor, kNoTensor, dx}});
  c.set_grad(0, dx);
}

void cases(std::vector<OpCase>& all) {
  const CaseInput w16{{16}, DType::kF32, Fill::kNormal, 0, true};
  const CaseInput w37{{37}, DType::kF32, Fill::kNormal, 0, true};
  all.push_back({"layernorm/small", &kLayerNorm, {{{5, 2, 16}}, w16, w16}, NormAttrs{}});
  all.push_back({"layernorm/one-plus-odd", &kLayerNorm, {{{3, 1, 37}}, w37, w37}, NormAttrs{1e-6F, false, true}});
}

}  // namespace

const OpKind kLayerNorm{
    .name = "layernorm", .shape = shape, .grad = grad, .cpu = cpu_layernorm, .cuda = "layernorm", .cases = cases};
const OpKind kLayerNormGrad{
    .name = "layernorm_grad", .shape = shape_grad, .cpu = cpu_layernorm_grad, .cuda = "layernorm_grad"};

}  // namespace mbb::trainer
