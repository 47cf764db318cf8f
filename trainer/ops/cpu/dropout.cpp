// Dropout and scaling on the CPU.
#include "trainer/ops/cpu/dropout.h"

#include "trainer/data/rng.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

DropoutMask::DropoutMask(double probability, int64_t stream, const float* step_record)
    : probability_(probability),
      stream_(rng_mix(static_cast<uint64_t>(stream) ^
                      (static_cast<uint64_t>(step_record[StepRecord::kStep]) + kRngGamma))) {}

double DropoutMask::factor(int32_t sample, int64_t element) const {
  const float draw = stream_.uniform(static_cast<uint64_t>(sample), static_cast<uint64_t>(element));
  return static_cast<double>(draw) < probability_ ? 0.0 : 1.0 / (1.0 - probability_);
}

Status cpu_dropout(const CpuCall& call) {
  const auto& a = call.attrs<DropoutAttrs>();
  const ReadF32 x(call.in[0]);
  const int32_t* samples = ints(call.in[1]);
  const ReadF32 record(call.in[2]);
  WriteF32 y(call.out[0]);
  const DropoutMask mask(a.probability, a.stream, record.data());
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t first = a.sequence_sharded ? call.rank.coordinates.tp * shape[0] : 0;
  const std::vector<PackedRow> rows = rows_of(a.positions, a.packed ? &call.in[3] : nullptr, first + shape[0]);
  for (int64_t s = 0; s < shape[0]; ++s) {
    const int64_t position = rows[static_cast<size_t>(first + s)].at;
    for (int64_t b = 0; b < shape[1]; ++b) {
      for (int64_t i = 0; i < shape[2]; ++i) {
        const int64_t at = (s * shape[1] + b) * shape[2] + i;
        y[at] = static_cast<float>(static_cast<double>(x[at]) * mask.factor(samples[b], position * shape[2] + i));
      }
    }
  }
  return {};
}

Status cpu_scale_by(const CpuCall& call) {
  const double factor = call.attrs<ScaleByAttrs>().forward;
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) * factor);
  return {};
}

}  // namespace mbb::trainer
