// Token sequences moved by whole positions, for predicting more than the next token.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: tokens i32 [s, b]; out: the same, position p holding what position p + by held.
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs&) {
  if (in[0]->shape.rank() != 2 || in[0]->dtype != DType::kI32)
    return fail(ErrorCode::kBadArgument, "not tokens [s, b]: " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, DType::kI32}};
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"shift_tokens/one", &kShiftTokens, {{{5, 2}, DType::kI32, Fill::kInts, 9}}, ShiftAttrs{1}, false});
}

}  // namespace

const OpKind kShiftTokens{
    .name = "shift_tokens", .shape = shape, .cpu = cpu_shift_tokens, .cuda = "shift_tokens", .cases = cases};

}  // namespace mbb::trainer
