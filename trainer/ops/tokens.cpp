// Token sequences moved by whole positions, for predicting more than the next token.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: tokens i32 [s, b] [, starts]; out: tokens i32 [rows, b].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ShiftAttrs>(attrs);
  if (in[0]->shape.rank() != 2 || in[0]->dtype != DType::kI32)
    return fail(ErrorCode::kBadArgument, "not tokens [s, b]: " + in[0]->shape.str());
  if (in.size() != (a.packed ? 2 : 1) || (a.packed && in[0]->shape[1] != 1))
    return fail(ErrorCode::kBadArgument, "shifting a pack reads its starts, and the pack is alone");
  return std::vector<TensorSpec>{{Shape{a.rows, in[0]->shape[1]}, DType::kI32}};
}

void cases(std::vector<OpCase>& all) {
  const auto tokens = [](Shape of) { return CaseInput{of, DType::kI32, Fill::kInts, 9}; };
  all.push_back({"shift_tokens/one", &kShiftTokens, {tokens({5, 2})}, ShiftAttrs{1, 5}, false});
  all.push_back({"shift_tokens/whole-packed",
                 &kShiftTokens,
                 {tokens({12, 1}), {{4}, DType::kI32, Fill::kStarts, 11}},
                 ShiftAttrs{2, 12, true},
                 false});
  const ShiftAttrs part{1, 6, true, context_positions(12, 2, 1), gathered_positions(12, 2)};
  all.push_back(
      {"shift_tokens/packed", &kShiftTokens, {tokens({12, 1}), {{3}, DType::kI32, Fill::kStarts, 12}}, part, false});
}

}  // namespace

const OpKind kShiftTokens{
    .name = "shift_tokens", .shape = shape, .cpu = cpu_shift_tokens, .cuda = "shift_tokens", .cases = cases};

}  // namespace mbb::trainer
