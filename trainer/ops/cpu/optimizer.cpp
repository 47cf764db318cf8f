// Gradient norm, scale and AdamW on the CPU, over this rank's shard of a flat bucket.
#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

struct Shard {
  int64_t begin, end;
};

Shard shard_of(const BucketAttrs& bucket, int64_t elements, const RankContext& rank) {
  if (!bucket.sharded) return {0, elements};
  const int64_t part = elements / bucket.group_size;
  const int64_t index = rank.index_in(bucket.shard_group);
  return {part * index, part * (index + 1)};
}

int64_t bucket_elements(const BucketAttrs& bucket, const CpuOperand& grads) {
  return bucket.elements > 0 ? bucket.elements : grads.elements();
}

// Where element 0 of the operand lies in the bucket.
int64_t first_element(const CpuOperand& operand, int64_t bucket_elements, Shard shard) {
  return operand.elements() < bucket_elements ? shard.begin : 0;
}

// visit(range, begin, end) for each piece of the bucket's tensors inside the shard.
template <typename Visit>
void for_ranges(const BucketAttrs& bucket, Shard shard, Visit&& visit) {
  for (const BucketRange& range : bucket.ranges) {
    const int64_t begin = std::max(range.offset, shard.begin);
    const int64_t end = std::min(range.offset + range.count, shard.end);
    if (begin < end) visit(range, begin, end);
  }
}

}  // namespace

Status cpu_grad_square_sum(const CpuCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const ReadF32 grads(call.in[0]);
  const int64_t elements = bucket_elements(bucket, call.in[0]);
  const Shard shard = shard_of(bucket, elements, call.rank);
  const int64_t first = first_element(call.in[0], elements, shard);
  const MeshCoordinates& at = call.rank.coordinates;
  const bool counts_replicated = (bucket.replica_axis == Axis::kEtp ? at.etp : at.tp) == 0;
  double sum = 0;
  for_ranges(bucket, shard, [&](const BucketRange& range, int64_t begin, int64_t end) {
    if (range.replicated && !counts_replicated) return;
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

// Decoupled weight decay; bias corrections come from the step record. A step with non-finite gradients changes nothing.
Status cpu_adamw(const CpuCall& call) {
  const auto& a = call.attrs<AdamAttrs>();
  const ReadF32 grads(call.in[0]);
  const ReadF32 record(call.in[4]);
  const ReadF32 scale(call.in[5]);
  if (scale[2] != 0.0F) return {};
  const bool has_master = call.in.size() > 6;
  WriteF32 weights(call.out[0], true);
  WriteF32 exp_avg(call.out[1], true);
  WriteF32 exp_avg_sq(call.out[2], true);
  std::vector<float> none;
  WriteF32 master(has_master ? call.out[3] : call.out[0], true);
  const int64_t elements = bucket_elements(a.bucket, call.in[0]);
  const Shard shard = shard_of(a.bucket, elements, call.rank);
  const int64_t first_grad = first_element(call.in[0], elements, shard);
  const int64_t first_weight = first_element(call.in[1], elements, shard);
  const double rate = static_cast<double>(record[StepRecord::kLearningRate]);
  const double correction1 = static_cast<double>(record[StepRecord::kBiasCorrection1]);
  const double correction2 = static_cast<double>(record[StepRecord::kBiasCorrection2]);
  const double beta1 = static_cast<double>(a.beta1);
  const double beta2 = static_cast<double>(a.beta2);
  for_ranges(a.bucket, shard, [&](const BucketRange& range, int64_t begin, int64_t end) {
    const double decay = range.decay ? rate * static_cast<double>(a.weight_decay) : 0.0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t local = i - shard.begin;
      const double g = static_cast<double>(grads[i - first_grad]) * static_cast<double>(scale[0]);
      const double m = beta1 * static_cast<double>(exp_avg[local]) + (1.0 - beta1) * g;
      const double v = beta2 * static_cast<double>(exp_avg_sq[local]) + (1.0 - beta2) * g * g;
      exp_avg[local] = static_cast<float>(m);
      exp_avg_sq[local] = static_cast<float>(v);
      const double update = (m / correction1) / (std::sqrt(v / correction2) + static_cast<double>(a.eps));
      const double before = static_cast<double>(has_master ? master[local] : weights[i - first_weight]);
      const auto after = static_cast<float>(before - decay * before - rate * update);
      if (has_master) master[local] = after;
      weights[i - first_weight] = after;
    }
  });
  return {};
}

}  // namespace mbb::trainer
