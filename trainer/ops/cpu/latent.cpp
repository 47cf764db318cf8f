// Packing of latent attention's projections on the CPU.
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/turns.h"

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

// The last elements of each of `heads` heads of every token turn: token t's heads begin at data + t · width.
template <typename T>
void turn_heads(const LatentAttrs& a, bool inverse, const CpuOperand* starts, const Shape& shape, T* data,
                int64_t heads, int64_t width, int64_t head_width) {
  for_turns(a.rotation, a.turned(), inverse, starts, shape[0], [&](const Turn& turn) {
    for (int64_t token = turn.row * shape[1]; token < (turn.row + 1) * shape[1]; ++token)
      for (int64_t head = 0; head < heads; ++head) turn.apply(data + token * width + (head + 1) * head_width - a.rope);
  });
}

}  // namespace

Status cpu_latent_pack(const CpuCall& call) {
  const auto& a = call.attrs<LatentAttrs>();
  const ReadF32 q(call.in[0]);
  const ReadF32 key(call.in[1]);
  const ReadF32 kv(call.in[2]);
  const ReadF32* sources[] = {&q, &key, &kv};
  WriteF32 packed(call.out[0]);
  const int64_t width = call.out[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.out[0].tensor->shape.rows(); ++r)
    for_elements(a, [&](int64_t at, size_t source, int64_t from) {
      packed[r * width + at] = (*sources[source])[r * call.in[source].tensor->shape.cols() + from];
    });
  if (a.turns)
    turn_heads(a, false, a.packed() ? &call.in[3] : nullptr, call.out[0].tensor->shape, packed.data(),
               2 * int64_t{a.heads}, width, a.nope + a.rope);
  return {};
}

Status cpu_latent_pack_grad(const CpuCall& call) {
  const auto& a = call.attrs<LatentAttrs>();
  const ReadF32 dpacked(call.in[0]);
  const int64_t width = call.in[0].tensor->shape.cols();
  std::vector<std::vector<double>> sums;
  for (const CpuOperand& out : call.out) sums.emplace_back(static_cast<size_t>(out.elements()), 0.0);
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r)
    for_elements(a, [&](int64_t at, size_t source, int64_t from) {
      sums[source][static_cast<size_t>(r * call.out[source].tensor->shape.cols() + from)] +=
          static_cast<double>(dpacked[r * width + at]);
    });
  if (a.turns) {
    const CpuOperand* const starts = a.packed() ? &call.in[1] : nullptr;
    const Shape& shape = call.in[0].tensor->shape;
    const int64_t key = a.nope + a.rope;
    turn_heads(a, true, starts, shape, sums[0].data(), a.heads, a.heads * key, key);
    turn_heads(a, true, starts, shape, sums[1].data(), 1, a.rope, a.rope);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    WriteF32 out(call.out[i]);
    for (size_t j = 0; j < sums[i].size(); ++j) out[static_cast<int64_t>(j)] = static_cast<float>(sums[i][j]);
  }
  return {};
}

}  // namespace mbb::trainer
