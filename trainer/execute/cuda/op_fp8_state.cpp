// CUDA functions of delayed scaling's state and of parameters kept in FP8.
#include <algorithm>
#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/fp8_state.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {

Status amax_record_op(const OpCall& call) {
  std::vector<const float*> scales;
  for (int64_t i = 0; i < call.out[0].elements(); ++i)
    scales.push_back(call.in[static_cast<size_t>(i)].as<const float>());
  return amax_record(scales, call.out[0].as<float>(), call.attrs<AmaxAttrs>().accumulate, call.device.launch());
}

Status scale_update_op(const OpCall& call) {
  return scale_update(call.attrs<ScaleUpdateAttrs>(), call.in[0].as<const float>(), call.in[3].as<const float>(),
                      call.out[0].shape()[0], call.in[0].elements(), call.out[0].as<float>(), call.out[1].as<float>(),
                      call.device.launch());
}

Status scalar_sum_op(const OpCall& call) {
  std::vector<Doubles> in;
  for (const Operand& o : call.in) in.push_back({o.as<const double>(), o.elements()});
  return scalar_sum(in, call.out[0].as<double>(), call.device.launch());
}

Status transpose_quantized_op(const OpCall& call) {
  return transpose_bytes({call.in[0].shape().rows(), call.in[0].shape().cols()}, call.in[0].data, call.out[0].data,
                         call.device.launch());
}

namespace {

// visit(range, first element of its part in this rank's shard, elements) for ranges that have one.
template <typename Visit>
Status each_range(const OpCall& call, Visit&& visit) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const int64_t size = call.in[0].elements(), begin = bucket.sharded ? size * call.shard_index : 0;
  for (size_t i = 0; i < bucket.ranges.size(); ++i) {
    const BucketRange& r = bucket.ranges[i];
    const int64_t from = std::max(r.offset, begin), to = std::min(r.offset + r.count, begin + size);
    MB_TRY(visit(i, from - begin, std::max<int64_t>(to - from, 0)));
  }
  return {};
}

}  // namespace

Status bucket_amax_op(const OpCall& call) {
  MB_TRY(
      ok(cudaMemsetAsync(call.out[0].data, 0, static_cast<size_t>(call.out[0].tensor->bytes()), call.device.stream()),
         "clearing amax"));
  return each_range(call, [&](size_t range, int64_t first, int64_t count) -> Status {
    if (count == 0) return {};
    return master_amax(call.in[0].as<const float>() + first, count, call.out[0].as<float>() + range,
                       call.device.launch());
  });
}

Status bucket_quantize_op(const OpCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const int64_t size = call.in[0].elements(), elements = bucket.sharded ? size * bucket.group_size : size;
  // Weights are the whole bucket, or this rank's shard alone.
  const int64_t shift = bucket.sharded && call.out[0].elements() == elements ? size * call.shard_index : 0;
  const Element to = call.out[0].tensor->dtype == DType::kE4M3 ? Element::kE4m3 : Element::kE5m2;
  return each_range(call, [&](size_t range, int64_t first, int64_t count) -> Status {
    const float* given = call.in.size() > 3 ? call.in[3 + range].as<const float>() : nullptr;
    const int64_t at = count > 0 ? first : 0;
    return master_quantize(to, call.in[0].as<const float>() + at, count, call.in[1].as<const float>() + range, given,
                           call.out[0].as<std::byte>() + shift + at, call.out[1 + range].as<float>(),
                           call.device.launch());
  });
}

}  // namespace mbb::trainer::cuda
