// Cross entropy over vocabulary-parallel logits in four steps, between which TP reduces: row maxima, sums, losses,
// gradient.
//
// A label below zero is no target (padding, masked): its loss and gradient are zero and it does not count as a token.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: logits [s, b, v]; out: the same, with padding so low that no probability is left of it; so its gradient is zero.
Result<std::vector<TensorSpec>> mask_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}
void mask_grad(GradContext& c) {
  c.set_grad(0, c.grad());
}
// Of the TP rank that holds the end of the vocabulary.
double padding_only(const OpView& op) {
  const int64_t cols = op.in(0).shape.cols();
  const int64_t kept = std::get<VocabularyAttrs>(op.op.attrs).vocabulary % cols;
  return static_cast<double>(op.in(0).bytes()) * static_cast<double>(cols - kept) / static_cast<double>(cols);
}

// in: logits [s, b, v]; out: row maxima f32 [s·b].
Result<std::vector<TensorSpec>> max_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[0]->shape.rows()}, DType::kF32}};
}

// in: logits, maxima, labels i32; out: f32 [2, s·b]: sums of exp(logit - max), logits of the targets minus max (0
// elsewhere).
Result<std::vector<TensorSpec>> sum_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{2, in[0]->shape.rows()}, DType::kF32}};
}

// in: logits, maxima, sums, labels [, loss sum]; out: loss sum f64 [2] += (sum of losses, tokens).
Result<std::vector<TensorSpec>> loss_shape(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{2}, DType::kF64}};
}

// in: logits, maxima, sums, labels; out: gradient of the summed loss.
Result<std::vector<TensorSpec>> grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void loss_grad(GradContext& c) {
  if (c.op().when == When::kNotFirst)
    return;  // the loss is summed by two ops, of which one runs; one gradient serves both
  c.emit_grad(0, kCrossEntropyGrad, "bwd", {c.saved_in(0), c.saved_in(1), c.saved_in(2), c.saved_in(3)}, c.op().attrs,
              {.category = Category::kLogits});
}

double logits_once(const OpView& op) {
  return static_cast<double>(op.in(0).bytes());
}
double rows_only(const OpView& op) {
  return static_cast<double>(op.in(2).bytes() + op.in(3).bytes());
}
double logits_twice(const OpView& op) {
  return 2.0 * static_cast<double>(op.in(0).bytes());
}

void mask_cases(std::vector<OpCase>& all) {
  all.push_back({"mask_vocabulary/odd", &kMaskVocabulary, {{{5, 2, 11}}}, VocabularyAttrs{7}, false});
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"cross_entropy/max", &kCrossEntropyMax, {{{5, 2, 11}}}, NoAttrs{}, false});
  all.push_back({"cross_entropy/sum",
                 &kCrossEntropySum,
                 {{{5, 2, 11}}, {{10}, DType::kF32, Fill::kPositive}, {{5, 2}, DType::kI32, Fill::kInts, 11}},
                 EmbeddingAttrs{},
                 false});
  std::vector<CaseInput> loss{{{5, 2, 11}},
                              {{10}, DType::kF32, Fill::kPositive},
                              {{2, 10}, DType::kF32, Fill::kPositive},
                              {{5, 2}, DType::kI32, Fill::kDropped, 11}};
  all.push_back({"cross_entropy/loss", &kCrossEntropyLoss, loss, EmbeddingAttrs{}, false});
  loss.push_back({{2}, DType::kF64});
  all.push_back({"cross_entropy/loss-accumulate", &kCrossEntropyLoss, loss, EmbeddingAttrs{true}, false});
  all.push_back({"cross_entropy/grad",
                 &kCrossEntropyGrad,
                 {{{5, 2, 11}},
                  {{10}, DType::kF32, Fill::kPositive},
                  {{2, 10}, DType::kF32, Fill::kPositive},
                  {{5, 2}, DType::kI32, Fill::kInts, 11}},
                 EmbeddingAttrs{},
                 false});
}

}  // namespace

const OpKind kMaskVocabulary{.name = "mask_vocabulary",
                             .shape = mask_shape,
                             .grad = mask_grad,
                             .bytes = padding_only,
                             .cpu = cpu_mask_vocabulary,
                             .cuda = "mask_vocabulary",
                             .cases = mask_cases,
                             .in_place = true};
const OpKind kCrossEntropyMax{.name = "cross_entropy_max",
                              .shape = max_shape,
                              .bytes = logits_once,
                              .cpu = cpu_cross_entropy_max,
                              .cuda = "cross_entropy_max",
                              .cases = cases};
const OpKind kCrossEntropySum{.name = "cross_entropy_sum",
                              .shape = sum_shape,
                              .bytes = logits_once,
                              .cpu = cpu_cross_entropy_sum,
                              .cuda = "cross_entropy_sum"};
const OpKind kCrossEntropyLoss{.name = "cross_entropy_loss",
                               .shape = loss_shape,
                               .grad = loss_grad,
                               .bytes = rows_only,
                               .cpu = cpu_cross_entropy_loss,
                               .cuda = "cross_entropy_loss",
                               .gradient_root = true};
const OpKind kCrossEntropyGrad{.name = "cross_entropy_grad",
                               .shape = grad_shape,
                               .bytes = logits_twice,
                               .cpu = cpu_cross_entropy_grad,
                               .cuda = "cross_entropy_grad",
                               .in_place = true};

}  // namespace mbb::trainer
