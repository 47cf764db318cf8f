// The router after its linear layer: which experts a token goes to, with what weight, the losses that balance them, the
// count of what each got and the bias that steers the next step.
//
// `sequences` i32 says of each token which of the micro-batch's sequences it is of, -1 where it is padding; where an op
// has a part of the tokens, it may be of all TP ranks' tokens. Padding goes to no expert (-1, with weight 0), is not
// counted and has no loss.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// Whether operands end at `at`, or with sequences there.
bool may_end_with_sequences(Inputs in, size_t at, int64_t tokens) {
  return in.size() == at ||
         (in.size() == at + 1 && in[at]->dtype == DType::kI32 && in[at]->shape.elements() % tokens == 0);
}

// in: logits f32 [.., experts] [, selection bias f32 [experts]] [, sequences]; out: experts i32 [tokens, top_k], best
// first.
Result<std::vector<TensorSpec>> select_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<RouterAttrs>(attrs);
  const int64_t experts = in[0]->shape.cols();
  if (a.top_k > experts || experts % a.groups != 0 || a.top_k_groups > a.groups ||
      !may_end_with_sequences(in, a.biased ? 2 : 1, in[0]->shape.rows()))
    return fail(ErrorCode::kBadArgument,
                fmt::format("top {} of {} experts in {} of {} groups", a.top_k, experts, a.top_k_groups, a.groups));
  return std::vector<TensorSpec>{{Shape{in[0]->shape.rows(), a.top_k}, DType::kI32}};
}

// in: logits, experts (of a token all -1, or none); out: weights f32 [tokens, top_k].
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

// Choice and weights in one op. in: as of the choice; out: experts, weights.
Result<std::vector<TensorSpec>> router_shape(Inputs in, const Attrs& attrs) {
  MB_ASSIGN(auto out, select_shape(in, attrs));
  out.push_back({out[0].shape, DType::kF32});
  return out;
}

void router_grad(GradContext& c) {
  c.emit_grad(0, kRouterWeightsGrad, "bwd", {c.grad(1), c.saved_in(0), c.saved_out(0)}, c.op().attrs);
}

// in: logits, counts f32 [sets, experts] over all the micro-batch's tokens, of which these may be a part [, sequences:
// with more than one set the token's]; out: f32 [2], these tokens' part of the balancing loss and of the z-loss, with
// their coefficients.
Result<std::vector<TensorSpec>> loss_shape(Inputs in, const Attrs&) {
  const int64_t tokens = in[0]->shape.rows();
  if ((in.size() == 2 && tokens % in[1]->shape[0] != 0) || in[0]->shape.cols() != in[1]->shape[1] ||
      !may_end_with_sequences(in, 2, tokens))
    return fail(ErrorCode::kBadArgument,
                fmt::format("router logits {} and counts {}", in[0]->shape.str(), in[1]->shape.str()));
  return std::vector<TensorSpec>{{Shape{2}, DType::kF32}};
}

// in: logits, counts [, sequences] [, gradient f32 of the two losses; else 1]; out: gradient of the logits.
Result<std::vector<TensorSpec>> loss_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void loss_grad(GradContext& c) {
  std::vector<TensorId> in;
  for (size_t i = 0; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  if (c.grad() != kNoTensor) in.push_back(c.grad());
  c.emit_grad(0, kRouterLossGrad, "bwd", in, c.op().attrs);
}

// in: losses f32 [2] [, total]; out: total f64 [2], for the step's report.
Result<std::vector<TensorSpec>> loss_sum_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, DType::kF64}};
}

// in: experts [, sequences: the sets]; out: counts f32 [sets, experts], tokens each expert got.
Result<std::vector<TensorSpec>> counts_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<CountAttrs>(attrs);
  if ((in.size() == 1 && in[0]->shape[0] % a.sets != 0) || !may_end_with_sequences(in, 1, in[0]->shape[0]))
    return fail(ErrorCode::kBadArgument, fmt::format("{} tokens of {} sets", in[0]->shape[0], a.sets));
  return std::vector<TensorSpec>{{Shape{a.sets, a.experts}, DType::kF32}};
}

// in: counts [, load]; out: load f32 [experts] += the counts of all sets.
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
  const CaseInput padded{{6, 2}, DType::kI32, Fill::kPadded, 5};
  all.push_back({"router_weights/padded", &kRouterWeights, {{{3, 2, 5}}, padded}, a});
  all.push_back({"router_weights/padded-top-k-first", &kRouterWeights, {{{3, 2, 5}}, padded}, first});
}

// Ten tokens of four sequences and padding.
const CaseInput kPadding{{5, 2}, DType::kI32, Fill::kDropped, 4};

void loss_cases(std::vector<OpCase>& all) {
  const auto counts = [](int64_t sets) {
    return CaseInput{.shape = {sets, 5}, .fill = Fill::kPositive, .fixed = true};
  };
  all.push_back({"router_loss/batch", &kRouterLoss, {{{3, 2, 5}}, counts(1)}, MoeLossAttrs{.aux = 0.5, .z = 0.1}});
  all.push_back(
      {"router_loss/sequence", &kRouterLoss, {{{3, 2, 5}}, counts(2)}, MoeLossAttrs{.aux = 0.5, .sigmoid = true}});
  const MoeLossAttrs both{.aux = 0.5, .z = 0.1};
  all.push_back({"router_loss/padded", &kRouterLoss, {{{5, 2, 5}}, counts(1), kPadding}, both});
  all.push_back({"router_loss/padded-sequences", &kRouterLoss, {{{5, 2, 5}}, counts(4), kPadding}, both});
}

void counts_cases(std::vector<OpCase>& all) {
  const CaseInput experts{{6, 2}, DType::kI32, Fill::kInts, 5};
  all.push_back({"expert_counts/two-sets", &kExpertCounts, {experts}, CountAttrs{.experts = 5, .sets = 2}, false});
  const CaseInput chosen{{10, 2}, DType::kI32, Fill::kPadded, 5};
  all.push_back({"expert_counts/padded", &kExpertCounts, {chosen}, CountAttrs{.experts = 5}, false});
  all.push_back(
      {"expert_counts/sequences", &kExpertCounts, {chosen, kPadding}, CountAttrs{.experts = 5, .sets = 4}, false});
}

void sum_cases(std::vector<OpCase>& all) {
  all.push_back({"loss_sum/first", &kLossSum, {{{2}}}, LossSumAttrs{.scale = 0.25}, false});
  all.push_back({"loss_sum/accumulate", &kLossSum, {{{2}}, {{2}, DType::kF64}}, LossSumAttrs{0.25, true}, false});
}
void bias_cases(std::vector<OpCase>& all) {
  all.push_back({"expert_bias/odd", &kExpertBias, {{{37}}, {{37}}}, ExpertBiasAttrs{0.1}, false});
}

void select_cases(std::vector<OpCase>& all) {
  RouterAttrs a;
  a.top_k = 2;
  all.push_back({"router_select/plain", &kRouterSelect, {{{3, 2, 8}}}, a, false});
  all.push_back({"router_select/padded", &kRouterSelect, {{{5, 2, 8}}, kPadding}, a, false});
  a.groups = 4;
  a.top_k_groups = 2;
  a.biased = a.sigmoid = true;
  all.push_back({"router_select/grouped", &kRouterSelect, {{{3, 2, 8}}, {{8}}}, a, false});
  all.push_back({"router/grouped", &kRouter, {{{3, 2, 8}}, {{8}}}, a, false});
  all.push_back({"router_select/padded-grouped", &kRouterSelect, {{{5, 2, 8}}, {{8}}, kPadding}, a, false});
  all.push_back({"router/padded", &kRouter, {{{5, 2, 8}}, {{8}}, kPadding}, a, false});
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
const OpKind kRouter{.name = "router", .shape = router_shape, .grad = router_grad, .cpu = cpu_router, .cuda = "router"};
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
const OpKind kLossSum{
    .name = "loss_sum", .shape = loss_sum_shape, .cpu = cpu_loss_sum, .cuda = "loss_sum", .cases = sum_cases};
const OpKind kExpertCounts{.name = "expert_counts",
                           .shape = counts_shape,
                           .cpu = cpu_expert_counts,
                           .cuda = "expert_counts",
                           .cases = counts_cases};
const OpKind kExpertLoad{.name = "expert_load", .shape = load_shape, .cpu = cpu_expert_load, .cuda = "expert_load"};
const OpKind kExpertBias{
    .name = "expert_bias", .shape = bias_shape, .cpu = cpu_expert_bias, .cuda = "expert_bias", .cases = bias_cases};

}  // namespace mbb::trainer
