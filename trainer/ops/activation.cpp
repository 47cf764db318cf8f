// Activations but SwiGLU, which has a record of its own (elementwise.cpp): GELU, ReLU, squared ReLU, and the gated ones
// over packed [gate | up].
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const Shape& x = in[0]->shape;
  if (!is_gated(std::get<ActivationAttrs>(attrs).function)) return std::vector<TensorSpec>{{x, in[0]->dtype}};
  if (x.cols() % 2 != 0) return fail(ErrorCode::kBadArgument, "a gated activation of an odd width: " + x.str());
  return std::vector<TensorSpec>{{x.with_last(x.cols() / 2), in[0]->dtype}};
}

// in: dy, x; out: dx.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void grad(GradContext& c) {
  c.emit_grad(0, kActivationGrad, "bwd", {c.grad(), c.saved_in(0)}, c.op().attrs);
}

void cases(std::vector<OpCase>& all) {
  // Fill::kApart stays off the kinks at multiples of one half.
  const auto add = [&](Pointwise function, float limit = 7.0F) {
    all.push_back({std::string("activation/") + name(function),
                   &kActivation,
                   {{{5, 2, 14}, DType::kF32, Fill::kApart}},
                   ActivationAttrs{function, limit, 1.702F}});
  };
  add(Pointwise::kGelu);
  add(Pointwise::kGeluTanh);
  add(Pointwise::kRelu);
  add(Pointwise::kSquaredRelu);
  add(Pointwise::kGeglu);
  add(Pointwise::kClampedSwiglu, 1.0F);
}

}  // namespace

const char* name(Pointwise function) {
  switch (function) {
    case Pointwise::kGelu: return "gelu";
    case Pointwise::kGeluTanh: return "gelu_tanh";
    case Pointwise::kRelu: return "relu";
    case Pointwise::kSquaredRelu: return "squared_relu";
    case Pointwise::kGeglu: return "geglu";
    case Pointwise::kClampedSwiglu: return "clamped_swiglu";
  }
  return "?";
}

const OpKind kActivation{
    .name = "activation", .shape = shape, .grad = grad, .cpu = cpu_activation, .cuda = "activation", .cases = cases};
const OpKind kActivationGrad{
    .name = "activation_grad", .shape = shape_grad, .cpu = cpu_activation_grad, .cuda = "activation_grad"};

}  // namespace mbb::trainer
