// Weight initialisation by unsharded index.
#include "trainer/run/initial_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include "trainer/data/rng.h"
#include "trainer/ops/table.h"
#include "trainer/precision/fp8.h"
#include "trainer/precision/scales.h"
#include "trainer/precision/states.h"
#include "trainer/run/unsharded_places.h"

namespace mbb::trainer {
namespace {

// work(begin, end) over [0, count): by several threads where there are so many values that making them takes seconds.
template <typename Work>
void in_parts(size_t count, const Work& work) {
  constexpr size_t kFewest = size_t{1} << 22U;  // values of a thread
  const size_t threads = std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), count / kFewest);
  if (threads < 2) return work(size_t{0}, count);
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads; ++t)
    others.emplace_back([&, t] { work(count * t / threads, count * (t + 1) / threads); });
  work(size_t{0}, count / threads);
  for (std::thread& other : others) other.join();
}

std::vector<float> initial_values(const Tensor& tensor, const MeshCoordinates& coordinates, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()), 0.0F);
  if (tensor.init.kind == Init::Kind::kOnes) std::fill(values.begin(), values.end(), 1.0F);
  if (tensor.init.kind != Init::Kind::kNormal) return values;
  const RandomStream random(seed, tensor.path, 0);
  const UnshardedPlaces places(tensor, coordinates);
  in_parts(values.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const int64_t at = places(static_cast<int64_t>(i));
      values[i] = static_cast<float>(tensor.init.stddev) * random.normal(0, static_cast<uint64_t>(at));
    }
  });
  return values;
}

using Sink = std::function<void(TensorId, std::span<const float>)>;

// The values of an FP8 weight become what is stored, times its scale; delayed scaling begins with 1.
void scale_for_fp8(const Tensor& t, std::span<float> values, const Sink& sink) {
  float amax = 0;
  for (float& value : values) {
    value = to_float(to_bf16(value));
    amax = std::max(amax, std::abs(value));
  }
  const float scale = t.scale_state != kNoTensor ? 1.0F : tensor_scale(amax, t.dtype, largest_of(DType::kBf16));
  for (float& value : values) value *= scale;
  sink(t.scales, std::array{1.0F / scale, amax});
}

// The same of all weights of a bucket.
std::vector<float> scaled_for_fp8(const Program& program, const BucketAttrs& bucket, std::vector<float> values,
                                  const Sink& sink) {
  std::map<std::string_view, const Tensor*> weights;
  for (const Tensor& t : program.tensors)
    if (t.scales != kNoTensor) weights[t.path] = &t;
  for (const BucketRange& range : bucket.ranges) {
    const std::span<float> all(values);
    scale_for_fp8(*weights.at(range.path),
                  all.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.count)), sink);
  }
  return values;
}

// Values [begin, begin + count) of a bucket as fp16 holds them, and the inverse scales of the ranges.
struct ScaledMaster {
  std::vector<float> values, inverse;
};
ScaledMaster scaled_for_fp16(const BucketAttrs& bucket, const std::vector<float>& whole, size_t begin, size_t count) {
  ScaledMaster out{
      {whole.begin() + static_cast<std::ptrdiff_t>(begin), whole.begin() + static_cast<std::ptrdiff_t>(begin + count)},
      std::vector<float>(bucket.ranges.size(), 0.0F)};
  for (size_t r = 0; r < bucket.ranges.size(); ++r) {
    const auto offset = static_cast<size_t>(bucket.ranges[r].offset);
    const size_t from = std::max(offset, begin);
    const size_t to = std::min(offset + static_cast<size_t>(bucket.ranges[r].count), begin + count);
    if (from >= to) continue;
    const std::span<float> mine = std::span(out.values).subspan(from - begin, to - from);
    float amax = 0;
    for (const float value : mine) amax = std::max(amax, std::abs(value));
    const float scale = amax > 0 ? kFp16Max / amax : 1.0F;
    for (float& value : mine) value *= scale;
    out.inverse[r] = 1.0F / scale;
  }
  return out;
}

// bf16 weights as they are kept beside the remainder of their master.
std::vector<float> rounded_half_up(std::vector<float> values) {
  in_parts(values.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) values[i] = to_float(split_master(values[i]).weight);
  });
  return values;
}

}  // namespace

int64_t unsharded_index(const Tensor& tensor, const MeshCoordinates& coordinates, int64_t index) {
  return UnshardedPlaces(tensor, coordinates)(index);
}

void initial_state(const Program& program, const Mesh& mesh, int rank, uint64_t seed,
                   const std::function<void(TensorId, std::span<const float>)>& sink) {
  const MeshCoordinates coordinates = mesh.coordinates(rank);
  // Whole buffers of weights that persist.
  std::map<TensorId, std::vector<float>> flat;
  std::map<std::string_view, std::vector<float>> gathered;  // weights that live in slots, by path
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    // Frozen weights and state of the optimizer lie in no bucket.
    if (t.main_grad == kNoTensor && t.view_of == kNoTensor && t.init.kind != Init::Kind::kNone) {
      std::vector<float> values = initial_values(t, coordinates, seed);
      if (t.scales != kNoTensor) scale_for_fp8(t, values, sink);
      sink(static_cast<TensorId>(i), values);
    }
    if (t.main_grad == kNoTensor) continue;
    std::vector<float> mine = initial_values(t, coordinates, seed);
    if (program.tensor(t.view_of).scope != Scope::kPersistent) {
      gathered[t.path] = std::move(mine);
      continue;
    }
    auto& values = flat[t.view_of];
    values.resize(static_cast<size_t>(program.tensor(t.view_of).shape.elements()), 0.0F);
    const int64_t offset = t.view_offset_bytes / static_cast<int64_t>(size_of(t.dtype));
    std::copy(mine.begin(), mine.end(), values.begin() + offset);
  }
  for (const auto& [id, values] : flat) sink(id, values);
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      if (op.kind != &kAdamW) continue;
      const auto& bucket = std::get<AdamAttrs>(op.attrs).bucket;
      const auto count = static_cast<size_t>(program.tensor(op.in[2]).shape.elements());
      const size_t begin = bucket.sharded ? count * static_cast<size_t>(mesh.group_index(bucket.shard_group, rank)) : 0;
      std::vector<float> whole;
      if (const auto found = flat.find(op.in[1]); found != flat.end()) {
        whole = found->second;
      } else {
        whole.resize(static_cast<size_t>(bucket.elements), 0.0F);
        for (const BucketRange& range : bucket.ranges)
          std::copy(gathered.at(range.path).begin(), gathered.at(range.path).end(), whole.begin() + range.offset);
        sink(op.in[1], std::span<const float>(whole).subspan(begin, count));
      }
      const MasterForm master = std::get<AdamAttrs>(op.attrs).master;
      const bool kept_whole = program.tensor(op.in[1]).shape.elements() == bucket.elements;
      const auto weights = [&](const std::vector<float>& values) {
        sink(op.in[1],
             kept_whole ? std::span<const float>(values) : std::span<const float>(values).subspan(begin, count));
      };
      if (program.tensor(op.in[1]).dtype == DType::kE4M3) weights(scaled_for_fp8(program, bucket, whole, sink));
      if (master == MasterForm::kRemainder) weights(rounded_half_up(whole));
      if (master == MasterForm::kState || master == MasterForm::kRemainder)
        sink(op.in[6], std::span<const float>(whole).subspan(begin, count));
      if (master == MasterForm::kScaled) {
        ScaledMaster scaled = scaled_for_fp16(bucket, whole, begin, count);
        sink(op.in[6], scaled.values);
        scaled.inverse.insert(scaled.inverse.begin(), 2 * bucket.ranges.size(), 0.0F);  // of the moments
        sink(op.in[7], scaled.inverse);
      }
    }
  }
}

void store_values(const Tensor& tensor, std::byte* to, std::span<const float> values) {
  if (tensor.dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  const auto each = [&](auto* as, const auto& rounded) {
    in_parts(values.size(), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) as[i] = rounded(values[i]);
    });
  };
  if (tensor.dtype == DType::kU16)  // the remainder of a master
    return each(reinterpret_cast<uint16_t*>(to), [](float value) { return split_master(value).remainder; });
  if (tensor.dtype == DType::kE4M3)
    return each(reinterpret_cast<uint8_t*>(to), [&](float value) { return to_fp8(value, tensor.dtype); });
  if (tensor.dtype == DType::kF16)
    return each(reinterpret_cast<uint16_t*>(to), [](float value) { return to_f16(value); });
  MB_CHECK(tensor.dtype == DType::kBf16, "initial values of dtype " + std::string(name(tensor.dtype)));
  each(reinterpret_cast<Bf16*>(to), [](float value) { return to_bf16(value); });
}

}  // namespace mbb::trainer
