// Dropout from counter-based random numbers, and scaling by constants.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: x [s, b, h], samples i32 [b], step record [, starts]; out: x with elements dropped. Backward, the same on dy.
Result<std::vector<TensorSpec>> dropout_shape(Inputs in, const Attrs& attrs) {
  const bool packed = std::get<DropoutAttrs>(attrs).packed;
  if (in.size() != (packed ? 4 : 3) || (packed && in[0]->shape[1] != 1))
    return fail(ErrorCode::kBadArgument, "dropout of a pack reads its starts, and the pack is alone");
  if (in[0]->shape.rank() != 3 || in[1]->shape.elements() != in[0]->shape[1])
    return fail(ErrorCode::kBadArgument,
                "dropout of " + in[0]->shape.str() + " with sample numbers " + in[1]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void dropout_grad(GradContext& c) {
  std::vector<TensorId> in{c.grad()};
  for (size_t i = 1; i < c.op().in.size(); ++i) in.push_back(c.saved_in(i));
  c.emit_grad(0, kDropout, "bwd", in, c.op().attrs);
}

Result<std::vector<TensorSpec>> scale_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void scale_grad(GradContext& c) {
  const auto& a = c.attrs<ScaleByAttrs>();
  c.emit_grad(0, kScaleBy, "bwd", {c.grad()}, ScaleByAttrs{a.backward, a.forward});
}

void dropout_cases(std::vector<OpCase>& all) {
  all.push_back({"dropout/half",
                 &kDropout,
                 {{{6, 2, 8}},
                  {{2}, DType::kI32, Fill::kInts, 100},
                  {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true}},
                 DropoutAttrs{0.5, 77, false}});
  all.push_back({"dropout/wide",
                 &kDropout,
                 {{{3, 2, 520}},
                  {{2}, DType::kI32, Fill::kInts, 100},
                  {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true}},
                 DropoutAttrs{0.5, 77, false}});
  all.push_back({"dropout/many_rows",
                 &kDropout,
                 {{{1700, 2, 8}},
                  {{2}, DType::kI32, Fill::kInts, 100},
                  {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true}},
                 DropoutAttrs{0.5, 77, false},
                 false});
  DropoutAttrs packed{0.5, 77, false, context_positions(12, 2, 1), true};
  all.push_back({"dropout/packed",
                 &kDropout,
                 {{{6, 1, 8}},
                  {{1}, DType::kI32, Fill::kInts, 100},
                  {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true},
                  {{3}, DType::kI32, Fill::kStarts, 12}},
                 packed});
}
void scale_cases(std::vector<OpCase>& all) {
  all.push_back({"scale_by/small", &kScaleBy, {{{4, 2, 9}}}, ScaleByAttrs{0.25, 0.25}});
}

}  // namespace

const OpKind kDropout{.name = "dropout",
                      .shape = dropout_shape,
                      .grad = dropout_grad,
                      .cpu = cpu_dropout,
                      .cuda = "dropout",
                      .cases = dropout_cases,
                      .in_place = true};
const OpKind kScaleBy{.name = "scale_by",
                      .shape = scale_shape,
                      .grad = scale_grad,
                      .cpu = cpu_scale_by,
                      .cuda = "scale_by",
                      .cases = scale_cases,
                      .in_place = true};

}  // namespace mbb::trainer
