// Gradient norm and scale on the CPU, over this rank's shard of a flat bucket.
#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/bucket.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
Status cpu_grad_square_sum(const CpuCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const ReadF32 grads(call.in[0]);
  const int64_t elements = bucket_elements(bucket, call.in[0]);
  const Shard shard = shard_of(bucket, elements, call.rank);
  const int64_t first = first_element(call.in[0], elements, shard);
  const MeshCoordinates& at = call.rank.coordinates;
  const bool counts_replicated = (bucket.replica_axis == Axis::kEtp ? at.etp : at.tp) == 0;
  double sum = 0;
  for_ranges(bucket, shard, [&](size_t range, int64_t begin, int64_t end) {
    const BucketRange& r = bucket.ranges[range];
    if (!r.counted || (r.replicated && !counts_replicated)) return;
    for (int64_t i = begin - first; i < end - first; ++i)
      sum += static_cast<double>(grads[i]) * static_cast<double>(grads[i]);
  });
  doubles(call.out[0])[0] = sum;
  return {};
}

Status cpu_scalar_sum(const CpuCall& call) {
  double sum = 0;
  for (const CpuOperand& operand : call.in)
    for (int64_t i = 0; i < operand.elements(); ++i) sum += doubles(operand)[i];
  doubles(call.out[0])[0] = sum;
  return {};
}

Status cpu_grad_scale(const CpuCall& call) {
  const double* squares = doubles(call.in[0]);
  const double tokens = doubles(call.in[1])[1];
  WriteF32 out(call.out[0]);
  double sum = 0;
  for (int64_t i = 0; i < call.in[0].elements(); ++i) sum += squares[i];
  const double norm = std::sqrt(sum) / tokens;
  const double clip = call.attrs<ScaleAttrs>().clip_grad;
  const double factor = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
  const bool finite = std::isfinite(norm) && tokens > 0;
  out[0] = finite ? static_cast<float>(factor / tokens) : 0.0F;
  out[1] = static_cast<float>(norm);
  out[2] = finite ? 0.0F : 1.0F;
  return {};
}

}  // namespace mbb::trainer
