// Parameters kept in FP8 on the CPU.
#include <cmath>

#include "trainer/ops/cpu/bucket.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

// What a bf16 weight would hold, so that its FP8 bits are those of quantizing that weight.
float as_weight(float master) {
  return to_float(to_bf16(master));
}

Shard shard_of_master(const CpuCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const int64_t shard = call.in[0].elements();
  return shard_of(bucket, bucket.sharded ? shard * bucket.group_size : shard, call.rank);
}

}  // namespace

Status cpu_transpose_quantized(const CpuCall& call) {
  const int64_t rows = call.in[0].tensor->shape.rows(), cols = call.in[0].tensor->shape.cols();
  const auto* q = static_cast<const uint8_t*>(call.in[0].data);
  auto* t = static_cast<uint8_t*>(call.out[0].data);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) t[c * rows + r] = q[r * cols + c];
  return {};
}

Status cpu_bucket_amax(const CpuCall& call) {
  const ReadF32 master(call.in[0]);
  const Shard shard = shard_of_master(call);
  WriteF32 amax(call.out[0]);
  for (int64_t i = 0; i < call.out[0].elements(); ++i) amax[i] = 0;
  for_ranges(call.attrs<BucketAttrs>(), shard, [&](size_t range, int64_t begin, int64_t end) {
    float& largest = amax[static_cast<int64_t>(range)];
    for (int64_t i = begin; i < end; ++i) {
      const float magnitude = std::abs(as_weight(master[i - shard.begin]));
      if (std::isnan(magnitude) || magnitude > largest) largest = magnitude;
    }
  });
  return {};
}

Status cpu_bucket_quantize(const CpuCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const ReadF32 master(call.in[0]);
  const ReadF32 amax(call.in[1]);
  const Shard shard = shard_of_master(call);
  const int64_t elements = bucket.sharded ? call.in[0].elements() * bucket.group_size : call.in[0].elements();
  const int64_t first_weight = first_element(call.out[0], elements, shard);
  const DType to = call.out[0].tensor->dtype;
  std::vector<float> scales;
  for (size_t i = 0; i < bucket.ranges.size(); ++i) {
    const float largest = amax[static_cast<int64_t>(i)];
    scales.push_back(call.in.size() > 3 ? ReadF32(call.in[3 + i])[0]
                                        : tensor_scale(largest, to, largest_of(DType::kBf16)));
    WriteF32 kept(call.out[1 + i]);
    kept[0] = 1.0F / scales.back();
    kept[1] = largest;
  }
  for_ranges(bucket, shard, [&](size_t range, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      static_cast<uint8_t*>(call.out[0].data)[i - first_weight] =
          to_fp8(as_weight(master[i - shard.begin]) * scales[range], to);
  });
  return {};
}

}  // namespace mbb::trainer
