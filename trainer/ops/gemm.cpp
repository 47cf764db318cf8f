// GEMM: the record of C (+)= op(A)·op(B). One kind serves fprop, dgrad and wgrad; the op's role tells them apart.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<GemmAttrs>(attrs);
  const Shape& x = in[0]->shape;
  const Shape& w = in[1]->shape;
  const int64_t k_a = a.trans_a ? x.rows() : x.cols();
  const int64_t k_b = a.trans_b ? w.cols() : w.rows();
  if (k_a != k_b)
    return fail(ErrorCode::kBadArgument,
                fmt::format("inner dimensions differ: {} and {} ({} · {})", k_a, k_b, x.str(), w.str()));
  const int64_t n = a.trans_b ? w.rows() : w.cols();
  return std::vector<TensorSpec>{
      {a.trans_a ? Shape{x.cols(), n} : x.with_last(n), a.out_f32 ? DType::kF32 : in[0]->dtype}};
}

// Y = X·Wᵀ: dX = dY·W, dW += dYᵀ·X.
void grad(GradContext& c) {
  const auto& a = c.attrs<GemmAttrs>();
  MB_CHECK(!a.trans_a && a.trans_b, "only linear layers (X·Wᵀ) are differentiated: " + c.op().path);
  const TensorId dy = c.grad();
  if (c.wants(0)) c.emit_grad(0, kGemm, "dgrad", {dy, c.saved_in(1)}, GemmAttrs{}, {.role = Role::kDgrad});
  if (c.in_tensor(1).main_grad != kNoTensor)
    c.emit_wgrad(1, kGemm, "wgrad", {dy, c.saved_in(0)}, [](bool accumulate) {
      return Attrs{GemmAttrs{.trans_a = true, .trans_b = false, .accumulate = accumulate}};
    });
}

// The router's linear layer: logits in fp32 whatever x is, and no model FLOPs (NUMERICS.md 2).
Result<std::vector<TensorSpec>> router_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(auto out, shape(in, attrs));
  if (!std::get<GemmAttrs>(attrs).out_f32) out[0].dtype = in[1]->dtype;
  return out;
}

void router_grad(GradContext& c) {
  if (c.wants(0)) c.emit_grad(0, kRouterGemm, "dgrad", {c.grad(), c.saved_in(1)}, GemmAttrs{}, {.role = Role::kDgrad});
  if (c.in_tensor(1).main_grad == kNoTensor) return;
  c.emit_wgrad(1, kRouterGemm, "wgrad", {c.grad(), c.saved_in(0)}, [](bool accumulate) {
    return Attrs{GemmAttrs{.trans_a = true, .trans_b = false, .accumulate = accumulate, .out_f32 = true}};
  });
}

double flops(const OpView& op) {
  const auto& a = std::get<GemmAttrs>(op.op.attrs);
  const Shape& x = op.in(0).shape;
  const int64_t m = a.trans_a ? x.cols() : x.rows();
  const int64_t k = a.trans_a ? x.rows() : x.cols();
  return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(op.out(0).shape.cols());
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"gemm/linear",
                 &kGemm,
                 {{{6, 2, 24}}, {{40, 24}, DType::kF32, Fill::kNormal, 0, true}},
                 GemmAttrs{false, true, false}});
  all.push_back({"gemm/linear-odd",
                 &kGemm,
                 {{{7, 1, 13}}, {{11, 13}, DType::kF32, Fill::kNormal, 0, true}},
                 GemmAttrs{false, true, false}});
  all.push_back({"gemm/nn", &kGemm, {{{9, 5}}, {{5, 17}}}, GemmAttrs{false, false, false}, false});
  all.push_back({"gemm/tn", &kGemm, {{{9, 5}}, {{9, 17}}}, GemmAttrs{true, false, false}, false});
  all.push_back(
      {"gemm/tn-accumulate", &kGemm, {{{64, 48}}, {{64, 32}}, {{48, 32}}}, GemmAttrs{true, false, true}, false});
}

void router_cases(std::vector<OpCase>& all) {
  all.push_back({"router_gemm/linear",
                 &kRouterGemm,
                 {{{6, 2, 24}}, {{5, 24}, DType::kF32, Fill::kNormal, 0, true}},
                 GemmAttrs{false, true, false, true}});
}

}  // namespace

const OpKind kRouterGemm{.name = "router_gemm",
                         .shape = router_shape,
                         .grad = router_grad,
                         .flops = flops,
                         .cpu = cpu_gemm,
                         .cuda = "router_gemm",
                         .cases = router_cases};
const OpKind kGemm{.name = "gemm",
                   .shape = shape,
                   .grad = grad,
                   .flops = flops,
                   .cpu = cpu_gemm,
                   .cuda = "gemm",
                   .cases = cases,
                   .model_flops = true};

}  // namespace mbb::trainer
