// Biases inside the ops after them: activation of a biased product, and the residual sum with its dropout.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

Status check_bias(const Tensor& x, const Tensor& bias) {
  if (bias.shape.elements() == x.shape.cols()) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("bias has {} for rows of {}", bias.shape.str(), x.shape.str()));
}

// in: x, bias; out: f(x + bias).
Result<std::vector<TensorSpec>> activation_shape(Inputs in, const Attrs& attrs) {
  MB_TRY(check_bias(*in[0], *in[1]));
  return kActivation.shape(in, attrs);
}

// in: dy, x, bias; out: gradient of x + bias.
Result<std::vector<TensorSpec>> activation_grad_shape(Inputs in, const Attrs&) {
  MB_TRY(check_bias(*in[1], *in[2]));
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

// in: residual, x [, bias] [, samples, step record [, starts]]; out: residual + dropout(x + bias). Dropout's operands
// are there when its probability is above 0.
Result<std::vector<TensorSpec>> add_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<DropoutAttrs>(attrs);
  const size_t without = in.size() - (a.probability > 0 ? (a.packed ? 3 : 2) : 0);
  if (in.size() < 2 || (without != 2 && without != 3))
    return fail(ErrorCode::kBadArgument, fmt::format("{} operands of a bias, dropout and sum", in.size()));
  if (in[0]->shape.elements() != in[1]->shape.elements())
    return fail(ErrorCode::kBadArgument, "sum of " + in[0]->shape.str() + " and " + in[1]->shape.str());
  if (without == 3) MB_TRY(check_bias(*in[1], *in[2]));
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void activation_cases(std::vector<OpCase>& all) {
  all.push_back(
      {"bias_activation/gelu", &kBiasActivation, {{{5, 2, 14}}, {{14}}}, ActivationAttrs{Pointwise::kGelu}, false});
  all.push_back({"bias_activation_grad/gelu",
                 &kBiasActivationGrad,
                 {{{5, 2, 14}}, {{5, 2, 14}}, {{14}}},
                 ActivationAttrs{Pointwise::kGelu},
                 false});
}

void add_cases(std::vector<OpCase>& all) {
  const CaseInput samples{{2}, DType::kI32, Fill::kInts, 100};
  const CaseInput record{{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true};
  all.push_back({"bias_dropout_add/bias", &kBiasDropoutAdd, {{{5, 2, 8}}, {{5, 2, 8}}, {{8}}}, DropoutAttrs{}, false});
  all.push_back({"bias_dropout_add/all",
                 &kBiasDropoutAdd,
                 {{{5, 2, 8}}, {{5, 2, 8}}, {{8}}, samples, record},
                 DropoutAttrs{0.5, 77, false},
                 false});
  all.push_back({"bias_dropout_add/many_rows",
                 &kBiasDropoutAdd,
                 {{{1100, 2, 8}}, {{1100, 2, 8}}, {{8}}, samples, record},
                 DropoutAttrs{0.5, 77, false},
                 false});
  all.push_back({"bias_dropout_add/context",
                 &kBiasDropoutAdd,
                 {{{6, 2, 8}}, {{6, 2, 8}}, samples, record},
                 DropoutAttrs{0.5, 77, false, context_positions(12, 2, 1)},
                 false});
}

}  // namespace

const OpKind kBiasActivation{.name = "bias_activation",
                             .shape = activation_shape,
                             .cpu = cpu_bias_activation,
                             .cuda = "bias_activation",
                             .cases = activation_cases};
const OpKind kBiasActivationGrad{.name = "bias_activation_grad",
                                 .shape = activation_grad_shape,
                                 .cpu = cpu_bias_activation_grad,
                                 .cuda = "bias_activation_grad"};
const OpKind kBiasDropoutAdd{.name = "bias_dropout_add",
                             .shape = add_shape,
                             .cpu = cpu_bias_dropout_add,
                             .cuda = "bias_dropout_add",
                             .cases = add_cases};

}  // namespace mbb::trainer
