// Rotary embedding of packed qkv on the CPU.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/turns.h"

namespace mbb::trainer {

Status cpu_rope(const CpuCall& call) {
  const auto& a = call.attrs<RopeAttrs>();
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const Shape& shape = call.in[0].tensor->shape;
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = x[i];
  const CpuOperand* const starts = a.rotation.packed ? &call.in[1] : nullptr;
  for_turns(a.rotation, a.turned(), a.inverse, starts, shape[0], [&](const Turn& turn) {
    for (int64_t token = turn.row * shape[1]; token < (turn.row + 1) * shape[1]; ++token)
      for (int64_t head = a.first_head; head < a.end_head(); ++head)
        turn.apply(y.data() + token * shape[2] + head * a.head_dim + a.rotary_offset);
  });
  return {};
}

}  // namespace mbb::trainer
