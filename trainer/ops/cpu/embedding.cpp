// Token embedding on the CPU.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// Row of the local table that holds a token, or -1 where another TP rank holds it.
int64_t local_row(int32_t token, int64_t rows, const RankContext& rank) {
  const int64_t row = token - rows * rank.coordinates.tp;
  return row >= 0 && row < rows ? row : -1;
}

}  // namespace

Status cpu_embedding(const CpuCall& call) {
  const int32_t* tokens = ints(call.in[0]);
  const ReadF32 table(call.in[1]);
  WriteF32 out(call.out[0]);
  const int64_t rows = call.in[1].tensor->shape[0];
  const int64_t h = call.in[1].tensor->shape[1];
  for (int64_t t = 0; t < call.in[0].elements(); ++t) {
    const int64_t row = local_row(tokens[t], rows, call.rank);
    for (int64_t i = 0; i < h; ++i) out[t * h + i] = row < 0 ? 0.0F : table[row * h + i];
  }
  return {};
}

Status cpu_shift_tokens(const CpuCall& call) {
  const int32_t* tokens = ints(call.in[0]);
  auto* moved = static_cast<int32_t*>(call.out[0].data);
  const auto& a = call.attrs<ShiftAttrs>();
  const CpuOperand* starts = a.packed ? &call.in[1] : nullptr;
  const int64_t batch = call.in[0].tensor->shape[1];
  const std::vector<PackedRow> from = rows_of(a.from, starts, call.in[0].tensor->shape[0]);
  std::map<int64_t, int64_t> row_at;  // by place in the whole
  for (size_t row = 0; row < from.size(); ++row) row_at[from[row].at] = static_cast<int64_t>(row);
  const std::vector<PackedRow> to = rows_of(a.to, starts, a.rows);
  for (size_t row = 0; row < to.size(); ++row) {
    const auto found = row_at.find(to[row].at + a.by);
    const bool own = found != row_at.end() && from[static_cast<size_t>(found->second)].sequence == to[row].sequence;
    for (int64_t b = 0; b < batch; ++b)
      moved[static_cast<int64_t>(row) * batch + b] = own ? tokens[found->second * batch + b] : -1;
  }
  return {};
}

Status cpu_embedding_grad(const CpuCall& call) {
  const ReadF32 dy(call.in[0]);
  const int32_t* tokens = ints(call.in[1]);
  const bool accumulate = call.attrs<EmbeddingAttrs>().accumulate;
  WriteF32 grad(call.out[0], accumulate);
  const int64_t rows = call.out[0].tensor->shape[0];
  const int64_t h = call.out[0].tensor->shape[1];
  if (!accumulate) std::fill(grad.data(), grad.data() + rows * h, 0.0F);
  for (int64_t t = 0; t < call.in[1].elements(); ++t) {
    const int64_t row = local_row(tokens[t], rows, call.rank);
    if (row < 0) continue;
    for (int64_t i = 0; i < h; ++i) grad[row * h + i] += dy[t * h + i];
  }
  return {};
}

}  // namespace mbb::trainer
