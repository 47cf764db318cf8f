// Bias and learned positions on the CPU.
#include <algorithm>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_bias_add(const CpuCall& call) {
  const float scale = call.attrs<BiasAttrs>().scale;
  const ReadF32 x(call.in[0]);
  const ReadF32 bias(call.in[1]);
  WriteF32 y(call.out[0]);
  const int64_t n = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r)
    for (int64_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] + scale * bias[i];
  return {};
}

Status cpu_bias_add_grad(const CpuCall& call) {
  const auto& a = call.attrs<BiasAttrs>();
  const ReadF32 dy(call.in[0]);
  WriteF32 db(call.out[0], a.accumulate);
  const int64_t n = call.in[0].tensor->shape.cols();
  std::vector<double> sums(static_cast<size_t>(n), 0.0);
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r)
    for (int64_t i = 0; i < n; ++i) sums[static_cast<size_t>(i)] += static_cast<double>(dy[r * n + i]);
  for (int64_t i = 0; i < n; ++i)
    db[i] = static_cast<float>((a.accumulate ? static_cast<double>(db[i]) : 0.0) +
                               static_cast<double>(a.scale) * sums[static_cast<size_t>(i)]);
  return {};
}

namespace {

// Position in its own sequence of each local token.
std::vector<int64_t> positions(const CpuCall& call, int64_t local_sequence, int64_t table_rows) {
  const auto& a = call.attrs<PositionAttrs>();
  const int64_t first = a.sequence_sharded ? call.rank.coordinates.tp * local_sequence : 0;
  const std::vector<PackedRow> rows = rows_of(a.positions, a.packed ? &call.in[2] : nullptr, first + local_sequence);
  std::vector<int64_t> at;
  // Behind the last sequence nobody has a label; any position will do.
  for (int64_t s = first; s < first + local_sequence; ++s)
    at.push_back(std::min(rows[static_cast<size_t>(s)].position(), table_rows - 1));
  return at;
}

}  // namespace

Status cpu_position_embedding(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  const ReadF32 table(call.in[1]);
  WriteF32 y(call.out[0]);
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t h = shape[2];
  const std::vector<int64_t> position = positions(call, shape[0], call.in[1].tensor->shape[0]);
  for (int64_t s = 0; s < shape[0]; ++s) {
    for (int64_t b = 0; b < shape[1]; ++b)
      for (int64_t i = 0; i < h; ++i) {
        const int64_t at = (s * shape[1] + b) * h + i;
        y[at] = x[at] + table[position[static_cast<size_t>(s)] * h + i];
      }
  }
  return {};
}

Status cpu_position_embedding_grad(const CpuCall& call) {
  const bool accumulate = call.attrs<PositionAttrs>().accumulate;
  const ReadF32 dy(call.in[0]);
  WriteF32 grad(call.out[0], accumulate);
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t h = shape[2];
  const std::vector<int64_t> position = positions(call, shape[0], call.in[1].tensor->shape[0]);
  if (!accumulate) std::fill(grad.data(), grad.data() + call.out[0].elements(), 0.0F);
  for (int64_t s = 0; s < shape[0]; ++s)
    for (int64_t b = 0; b < shape[1]; ++b)
      for (int64_t i = 0; i < h; ++i) grad[position[static_cast<size_t>(s)] * h + i] += dy[(s * shape[1] + b) * h + i];
  return {};
}

}  // namespace mbb::trainer
