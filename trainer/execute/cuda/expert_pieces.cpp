// Two moves of rows around an op.
#include "trainer/execute/cuda/expert_pieces.h"

#include <vector>

#include "trainer/ops/cuda/part_kernels.h"

namespace mbb::trainer::cuda {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

RowShape row_shape(const Operand& operand) {
  return {operand.shape().rows(), operand.shape().cols()};
}

}  // namespace

Status by_expert(const OpCall& call, OpFunction function, int64_t experts, std::initializer_list<size_t> rows,
                 size_t segments, bool rows_out) {
  const int64_t buffer_rows = call.in[*rows.begin()].shape().rows();
  const int64_t merged_bytes = aligned(2 * experts * 4), places_bytes = aligned(buffer_rows * 4);
  int64_t bytes = merged_bytes + places_bytes;
  for (const size_t i : rows) bytes += aligned(call.in[i].tensor->bytes());
  if (rows_out) bytes += aligned(call.out[0].tensor->bytes());
  MB_ASSIGN(void* const scratch, call.device.outer_scratch(bytes));
  auto* at = static_cast<std::byte*>(scratch);
  const auto take = [&](int64_t size) { return std::exchange(at, at + aligned(size)); };
  auto* const merged = reinterpret_cast<int32_t*>(take(merged_bytes));
  auto* const places = reinterpret_cast<int32_t*>(take(places_bytes));
  MB_TRY(merge_pieces(call.in[segments].as<const int32_t>(), call.in[segments].shape()[1], experts, buffer_rows, merged,
                      places, call.device.launch()));
  std::vector<Operand> in(call.in.begin(), call.in.end()), out(call.out.begin(), call.out.end());
  Tensor merged_tensor = *call.in[segments].tensor;
  merged_tensor.shape = Shape{2, experts};
  in[segments] = {merged, &merged_tensor};
  for (const size_t i : rows) {
    MB_ASSIGN(const Element element, element_of(*call.in[i].tensor));
    in[i].data = take(call.in[i].tensor->bytes());
    MB_TRY(scatter_rows(element, row_shape(call.in[i]), call.in[i].data, places, in[i].data, call.device.launch()));
  }
  if (rows_out) out[0].data = take(call.out[0].tensor->bytes());
  MB_TRY(function(
      OpCall{call.op, in, out, call.coordinates, call.shard_index, call.device, call.sm_target, call.ranks, call.id}));
  if (!rows_out) return {};
  MB_ASSIGN(const Element element, element_of(*call.out[0].tensor));
  return gather_rows(element, row_shape(call.out[0]), out[0].data, places, call.out[0].data, call.device.launch());
}

}  // namespace mbb::trainer::cuda
