// RMS norm of every query and key head of packed qkv (layout: attrs.h), one weight for queries and one for keys.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: qkv [s, b, ..], query weight [d], key weight [d]; out: qkv, inverse norms f32 [s·b, heads + kv_heads].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<QkNormAttrs>(attrs);
  const int64_t want = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * a.head_dim;
  if (in[0]->shape[-1] != want || in[1]->shape.elements() != a.head_dim || in[2]->shape.elements() != a.head_dim)
    return fail(ErrorCode::kBadArgument,
                fmt::format("packed qkv is {}, last dimension must be {}; weights are {} and {}, each must be {}",
                            in[0]->shape.str(), want, in[1]->shape.str(), in[2]->shape.str(), a.head_dim));
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype},
                                 {Shape{in[0]->shape.rows(), a.heads + a.kv_heads}, DType::kF32}};
}

// in: dy, qkv, query weight, key weight, inverse norms [, main grads]; out: main grads (f32), dqkv.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{
      {in[2]->shape, DType::kF32}, {in[3]->shape, DType::kF32}, {in[1]->shape, in[1]->dtype}};
}

void grad(GradContext& c) {
  const QkNormAttrs a = c.attrs<QkNormAttrs>();
  const TensorId dx = c.declare_grad(0, "bwd");
  c.emit_wgrads({1, 2}, kQkNormGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1), c.saved_in(2), c.saved_out(1)},
                [&](bool accumulate) {
                  QkNormAttrs with = a;
                  with.accumulate = accumulate;
                  return Attrs{with};
                },
                {.out = {kNoTensor, kNoTensor, dx}});
  c.set_grad(0, dx);
}

void cases(std::vector<OpCase>& all) {
  const CaseInput w{{8}, DType::kF32, Fill::kNormal, 0, true};
  all.push_back({"qk_norm/gqa", &kQkNorm, {{{5, 2, 64}}, w, w}, QkNormAttrs{4, 2, 8}});
}

}  // namespace

const OpKind kQkNorm{
    .name = "qk_norm", .shape = shape, .grad = grad, .cpu = cpu_qk_norm, .cuda = "qk_norm", .cases = cases};
const OpKind kQkNormGrad{.name = "qk_norm_grad", .shape = shape_grad, .cpu = cpu_qk_norm_grad, .cuda = "qk_norm_grad"};

}  // namespace mbb::trainer
