// Rotary embedding of packed qkv on the CPU.
#include <cmath>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_rope(const CpuCall& call) {
  const auto& a = call.attrs<RopeAttrs>();
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t width = shape[2];
  const int64_t half = a.turned() / 2;
  const std::vector<PackedRow> rows = rows_of(a.positions, a.packed ? &call.in[1] : nullptr, shape[0]);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = x[i];
  for (int64_t s = 0; s < shape[0]; ++s) {
    for (int64_t pair = 0; pair < half; ++pair) {
      const double frequency =
          a.frequencies.empty() ? std::pow(a.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(a.turned()))
                                : a.frequencies[static_cast<size_t>(pair)];
      const double position = static_cast<double>(rows[static_cast<size_t>(s)].position());
      const double angle = position * frequency * (a.inverse ? -1.0 : 1.0);
      const double cosine = std::cos(angle) * a.factor;
      const double sine = std::sin(angle) * a.factor;
      const int64_t low = a.rotary_offset + (a.interleaved ? 2 * pair : pair);
      const int64_t high = low + (a.interleaved ? 1 : half);
      for (int64_t b = 0; b < shape[1]; ++b) {
        for (int64_t head = a.first_head; head < a.end_head(); ++head) {
          const int64_t at = (s * shape[1] + b) * width + head * a.head_dim;
          const double lo = static_cast<double>(x[at + low]);
          const double hi = static_cast<double>(x[at + high]);
          y[at + low] = static_cast<float>(lo * cosine - hi * sine);
          y[at + high] = static_cast<float>(hi * cosine + lo * sine);
        }
      }
    }
  }
  return {};
}

}  // namespace mbb::trainer
