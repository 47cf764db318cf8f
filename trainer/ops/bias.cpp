// Bias of a linear layer, added to every row.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: x [.., n], b [n]; out: x + scale · b.
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs&) {
  if (in[1]->shape.elements() != in[0]->shape.cols())
    return fail(ErrorCode::kBadArgument, "bias has " + in[1]->shape.str() + " for rows of " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

// in: dy, b (for its extent) [, main grad]; out: main grad of b (f32).
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}};
}

void grad(GradContext& c) {
  const BiasAttrs a = c.attrs<BiasAttrs>();
  c.emit_wgrad(1, kBiasAddGrad, "wgrad", {c.grad(), c.saved_in(1)}, [&](bool accumulate) {
    return Attrs{BiasAttrs{accumulate, a.scale}};
  });
  if (c.wants(0)) c.set_grad(0, c.grad());
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"bias_add/odd", &kBiasAdd, {{{5, 2, 13}}, {{13}, DType::kF32, Fill::kNormal, 0, true}}, BiasAttrs{}});
  all.push_back({"bias_add/narrow", &kBiasAdd, {{{5, 2, 13}}, {{13}, DType::kBf16}}, BiasAttrs{}, false});
  all.push_back(
      {"bias_add/half", &kBiasAdd, {{{3, 8}}, {{8}, DType::kF32, Fill::kNormal, 0, true}}, BiasAttrs{false, 0.5F}});
  all.push_back(
      {"bias_add/runs", &kBiasAdd, {{{150, 2, 264}}, {{264}, DType::kF32, Fill::kNormal, 0, true}}, BiasAttrs{}});
}

}  // namespace

const OpKind kBiasAdd{.name = "bias_add",
                      .shape = shape,
                      .grad = grad,
                      .cpu = cpu_bias_add,
                      .cuda = "bias_add",
                      .cases = cases,
                      .in_place = true};
const OpKind kBiasAddGrad{
    .name = "bias_add_grad", .shape = shape_grad, .cpu = cpu_bias_add_grad, .cuda = "bias_add_grad"};

}  // namespace mbb::trainer
