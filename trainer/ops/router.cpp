// The router after its linear layer: which experts a token goes to, with what weight, the losses that balance them, the
// count of what each got and the bias that steers the next step.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: logits f32 [.., experts] [, selection bias f32 [experts]]; out: experts i32 [tokens, top_k], best first.
Result<std::vector<TensorSpec>> select_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<RouterAttrs>(attrs);
  const int64_t experts = in[0]->shape.cols();
  if (a.top_k > experts || experts % a.groups != 0 || a.top_k_groups > a.groups || in.size() != (a.biased ? 2U : 1U))
    return fail(ErrorCode::kBadArgument,
                fmt::format("top {} of {} experts in {} of {} groups", a.top_k, experts, a.top_k_groups, a.groups));
  return std::vector<TensorSpec>{{Shape{in[0]->shape.rows(), a.top_k}, DType::kI32}};
}

// in: logits, experts; out: weights f32 [tokens, top_k].
Result<std::vector<TensorSpec>> weights_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}};
}

// in: gradient of the weights, logits, experts; out: gradient of the logits.
Result<std::vector<TensorSpec>> weights_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void weights_grad(GradContext& c) {
  c.emit_grad(0, kRouterWeightsGrad, "bwd", {c.grad(), c.saved_in(0), c.saved_in(1)}, c.op().attrs);
}

// in: logits, experts; out: f32 [2], balancing loss and z-loss with their coefficients.
Result<std::vector<TensorSpec>> loss_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<MoeLossAttrs>(attrs);
  if (in[0]->shape.rows() % a.sequences != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} tokens of {} sequences", in[0]->shape.rows(), a.sequences));
  return std::vector<TensorSpec>{{Shape{2}, DType::kF32}};
}

// in: logits, experts [, gradient of the two losses; else 1]; out: gradient of the logits.
Result<std::vector<TensorSpec>> loss_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void loss_grad(GradContext& c) {
  std::vector<TensorId> in{c.saved_in(0), c.saved_in(1)};
  if (c.grad() != kNoTensor) in.push_back(c.grad());
  c.emit_grad(0, kRouterLossGrad, "bwd", in, c.op().attrs);
}

// in: experts [, load]; out: load f32 [experts] += tokens each got.
Result<std::vector<TensorSpec>> load_shape(Inputs, const Attrs& attrs) {
  return std::vector<TensorSpec>{{Shape{std::get<CountAttrs>(attrs).experts}, DType::kF32}};
}

// in: load, bias; out: bias += rate · sign(mean load − load).
Result<std::vector<TensorSpec>> bias_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void weights_cases(std::vector<OpCase>& all) {
  const CaseInput experts{{6, 2}, DType::kI32, Fill::kInts, 5};
  RouterAttrs a;
  a.top_k = 2;
  all.push_back({"router_weights/softmax", &kRouterWeights, {{{3, 2, 5}}, experts}, a});
  a.normalize = true;
  a.scaling = 2.5;
  all.push_back({"router_weights/softmax-normalized", &kRouterWeights, {{{3, 2, 5}}, experts}, a});
  a.sigmoid = true;
  all.push_back({"router_weights/sigmoid", &kRouterWeights, {{{3, 2, 5}}, experts}, a});
  RouterAttrs first;
  first.top_k = 2;
  first.top_k_first = true;
  all.push_back({"router_weights/top-k-first", &kRouterWeights, {{{3, 2, 5}}, experts}, first});
}

void loss_cases(std::vector<OpCase>& all) {
  const CaseInput experts{{6, 2}, DType::kI32, Fill::kInts, 5};
  all.push_back({"router_loss/batch", &kRouterLoss, {{{3, 2, 5}}, experts}, MoeLossAttrs{0.5, 0.1, false, 2, false}});
  all.push_back({"router_loss/sequence", &kRouterLoss, {{{3, 2, 5}}, experts}, MoeLossAttrs{0.5, 0.0, true, 2, true}});
}

void select_cases(std::vector<OpCase>& all) {
  RouterAttrs a;
  a.top_k = 2;
  all.push_back({"router_select/plain", &kRouterSelect, {{{3, 2, 8}}}, a, false});
  a.groups = 4;
  a.top_k_groups = 2;
  a.biased = a.sigmoid = true;
  all.push_back({"router_select/grouped", &kRouterSelect, {{{3, 2, 8}}, {{8}}}, a, false});
}

}  // namespace

const OpKind kRouterSelect{.name = "router_select",
                           .shape = select_shape,
                           .cpu = cpu_router_select,
                           .cuda = "router_select",
                           .cases = select_cases};
const OpKind kRouterWeights{.name = "router_weights",
                            .shape = weights_shape,
                            .grad = weights_grad,
                            .cpu = cpu_router_weights,
                            .cuda = "router_weights",
                            .cases = weights_cases};
const OpKind kRouterWeightsGrad{.name = "router_weights_grad",
                                .shape = weights_grad_shape,
                                .cpu = cpu_router_weights_grad,
                                .cuda = "router_weights_grad"};
const OpKind kRouterLoss{.name = "router_loss",
                         .shape = loss_shape,
                         .grad = loss_grad,
                         .cpu = cpu_router_loss,
                         .cuda = "router_loss",
                         .cases = loss_cases,
                         .gradient_root = true};
const OpKind kRouterLossGrad{
    .name = "router_loss_grad", .shape = loss_grad_shape, .cpu = cpu_router_loss_grad, .cuda = "router_loss_grad"};
const OpKind kExpertLoad{.name = "expert_load", .shape = load_shape, .cpu = cpu_expert_load, .cuda = "expert_load"};
const OpKind kExpertBias{.name = "expert_bias", .shape = bias_shape, .cpu = cpu_expert_bias, .cuda = "expert_bias"};

}  // namespace mbb::trainer
