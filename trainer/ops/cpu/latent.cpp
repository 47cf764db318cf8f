// Packing of latent attention's projections on the CPU.
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// visit(packed element, source: 0 queries, 1 rotary key, 2 keys and values; element of the source) within one token.
template <typename Visit>
void for_elements(const LatentAttrs& a, Visit&& visit) {
  const int64_t key = a.nope + a.rope;
  for (int64_t i = 0; i < a.heads * key; ++i) visit(i, 0, i);
  for (int64_t head = 0; head < a.heads; ++head) {
    const int64_t packed_key = (a.heads + head) * key;
    const int64_t packed_value = 2 * a.heads * key + head * a.value;
    const int64_t source = head * (a.nope + a.value);
    for (int64_t i = 0; i < a.nope; ++i) visit(packed_key + i, 2, source + i);
    for (int64_t i = 0; i < a.rope; ++i) visit(packed_key + a.nope + i, 1, i);
    for (int64_t i = 0; i < a.value; ++i) visit(packed_value + i, 2, source + a.nope + i);
  }
}

}  // namespace

Status cpu_latent_pack(const CpuCall& call) {
  const ReadF32 q(call.in[0]);
  const ReadF32 key(call.in[1]);
  const ReadF32 kv(call.in[2]);
  const ReadF32* sources[] = {&q, &key, &kv};
  WriteF32 packed(call.out[0]);
  const int64_t width = call.out[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.out[0].tensor->shape.rows(); ++r)
    for_elements(call.attrs<LatentAttrs>(), [&](int64_t at, size_t source, int64_t from) {
      packed[r * width + at] = (*sources[source])[r * call.in[source].tensor->shape.cols() + from];
    });
  return {};
}

Status cpu_latent_pack_grad(const CpuCall& call) {
  const ReadF32 dpacked(call.in[0]);
  const int64_t width = call.in[0].tensor->shape.cols();
  std::vector<std::vector<double>> sums;
  for (const CpuOperand& out : call.out) sums.emplace_back(static_cast<size_t>(out.elements()), 0.0);
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r)
    for_elements(call.attrs<LatentAttrs>(), [&](int64_t at, size_t source, int64_t from) {
      sums[source][static_cast<size_t>(r * call.out[source].tensor->shape.cols() + from)] +=
          static_cast<double>(dpacked[r * width + at]);
    });
  for (size_t i = 0; i < sums.size(); ++i) {
    WriteF32 out(call.out[i]);
    for (size_t j = 0; j < sums[i].size(); ++j) out[static_cast<int64_t>(j)] = static_cast<float>(sums[i][j]);
  }
  return {};
}

}  // namespace mbb::trainer
