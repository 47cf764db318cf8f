// Weights first, then what each optimizer op keeps of its bucket.
#include "trainer/execute/first_state.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "trainer/data/rng.h"

namespace mbb::trainer {
namespace {

// Elements [begin, end) of a bucket, and where the first of them lies.
struct Window {
  int64_t begin = 0, end = 0;
  std::byte* data = nullptr;
  DType dtype = DType::kF32;

  // The part of a range that lies inside.
  int64_t from(const BucketRange& range) const { return std::max(range.offset, begin); }
  int64_t to(const BucketRange& range) const {
    return std::max(from(range), std::min(range.offset + range.count, end));
  }
  std::byte* at(int64_t element) const { return data + (element - begin) * static_cast<int64_t>(size_of(dtype)); }
};

// The scale is of the whole weight of `count` elements, whatever part of it is written.
Status fp8_part(const FirstState& state, FirstStores& stores, const Tensor& weight, int64_t count,
                const FirstRange& part, std::byte* to) {
  auto* const scales = reinterpret_cast<float*>(state.data(weight.scales));  // inverse, amax
  const bool delayed = weight.scale_state != kNoTensor;
  MB_TRY(stores.amax({part.values, 0, count}, true, scales + 1));
  MB_TRY(stores.fp8_inverse(scales + 1, delayed, scales));
  return stores.fp8(part, scales + 1, delayed, to);
}

class BucketState {
 public:
  BucketState(const FirstState& state, FirstStores& stores, const Op& op)
      : state_(state),
        stores_(stores),
        op_(op),
        adam_(std::get<AdamAttrs>(op.attrs)),
        coordinates_(state.mesh.coordinates(state.rank)) {
    const BucketAttrs& bucket = adam_.bucket;
    const int64_t count = state.program.tensor(op.in[2]).shape.elements();
    const int64_t begin = bucket.sharded ? count * state.mesh.group_index(bucket.shard_group, state.rank) : 0;
    shard_ = {begin, begin + count, nullptr, DType::kF32};
    const Tensor& weights = state.program.tensor(op.in[1]);
    weights_ = weights.shape.elements() == bucket.elements ? Window{0, bucket.elements} : shard_;
    weights_.data = state.data(op.in[1]), weights_.dtype = weights.dtype;
    // Weights that live in slots are gathered from what is kept here; others are whole, and made with their tensors.
    made_with_tensors_ = true;
    for (const Tensor& t : state.program.tensors) {
      if (t.main_grad == kNoTensor) continue;
      by_path_[t.path] = &t;
    }
    for (const BucketRange& range : bucket.ranges)
      made_with_tensors_ = made_with_tensors_ && by_path_.at(range.path)->view_of == op.in[1];
  }

  Status make() {
    const BucketAttrs& bucket = adam_.bucket;
    for (size_t r = 0; r < bucket.ranges.size(); ++r) {
      const BucketRange& range = bucket.ranges[r];
      const Tensor& weight = *by_path_.at(range.path);
      const FirstValues values(weight, coordinates_, state_.seed);
      if (weights_.dtype == DType::kE4M3)
        MB_TRY(fp8_part(state_, stores_, weight, range.count, part(weights_, range, values),
                        weights_.at(weights_.from(range))));
      else if (adam_.master == MasterForm::kRemainder)
        MB_TRY(stores_.split(part(weights_, range, values), weights_.at(weights_.from(range)), nullptr));
      else if (!made_with_tensors_)
        MB_TRY(stores_.plain(part(weights_, range, values), weights_.dtype, weights_.at(weights_.from(range))));
      MB_TRY(master(range, r, values));
    }
    return {};
  }

 private:
  FirstRange part(const Window& window, const BucketRange& range, const FirstValues& values) const {
    const int64_t from = window.from(range);
    return {values, from - range.offset, window.to(range) - from};
  }

  Status master(const BucketRange& range, size_t index, const FirstValues& values) {
    if (adam_.master == MasterForm::kNone || adam_.master == MasterForm::kStochastic) return {};
    Window kept = shard_;
    kept.data = state_.data(op_.in[6]), kept.dtype = state_.program.tensor(op_.in[6]).dtype;
    const FirstRange mine = part(kept, range, values);
    std::byte* const to = kept.at(kept.from(range));
    if (adam_.master == MasterForm::kState) return stores_.plain(mine, DType::kF32, to);
    if (adam_.master == MasterForm::kRemainder) return stores_.split(mine, nullptr, to);
    if (mine.count == 0) return {};
    // Inverse scales of both moments stand before the masters'.
    auto* const inverse = reinterpret_cast<float*>(state_.data(op_.in[7])) + 2 * adam_.bucket.ranges.size() + index;
    MB_TRY(stores_.amax(mine, false, inverse));
    MB_TRY(stores_.fp16(mine, inverse, to));
    return stores_.fp16_inverse(inverse);
  }

  const FirstState& state_;
  FirstStores& stores_;
  const Op& op_;
  const AdamAttrs& adam_;
  MeshCoordinates coordinates_;
  std::map<std::string_view, const Tensor*> by_path_;
  Window shard_, weights_;
  bool made_with_tensors_ = false;
};

}  // namespace

FirstValues::FirstValues(const Tensor& weight, const MeshCoordinates& coordinates, uint64_t seed)
    : constant(weight.init.kind == Init::Kind::kOnes ? 1.0F : 0.0F),
      random(weight.init.kind == Init::Kind::kNormal),
      stddev(static_cast<float>(weight.init.stddev)),
      key(RandomStream(seed, weight.path, 0).key()),
      places(weight, coordinates) {}

Status make_first_state(const FirstState& state, FirstStores& stores) {
  const MeshCoordinates coordinates = state.mesh.coordinates(state.rank);
  for (size_t i = 0; i < state.program.tensors.size(); ++i) {
    const Tensor& t = state.program.tensors[i];
    if (t.init.kind == Init::Kind::kNone || t.init.kind == Init::Kind::kZeros) continue;
    // Frozen weights and state of the optimizer lie in no bucket.
    const bool alone = t.main_grad == kNoTensor && t.view_of == kNoTensor;
    const bool whole = t.main_grad != kNoTensor && state.program.tensor(t.view_of).scope == Scope::kPersistent;
    if (!alone && (!whole || t.dtype == DType::kE4M3)) continue;
    const FirstValues values(t, coordinates, state.seed);
    const FirstRange all{values, 0, t.shape.elements()};
    std::byte* const to = state.data(static_cast<TensorId>(i));
    MB_TRY(alone && t.scales != kNoTensor ? fp8_part(state, stores, t, all.count, all, to)
                                          : stores.plain(all, t.dtype, to));
  }
  for (const Segment& segment : state.program.segments)
    for (const Op& op : segment.ops)
      if (std::holds_alternative<AdamAttrs>(op.attrs)) MB_TRY(BucketState(state, stores, op).make());
  return {};
}

}  // namespace mbb::trainer
