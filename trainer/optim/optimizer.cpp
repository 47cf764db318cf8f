// Buckets, gradient sync and optimizer as ops.
#include "trainer/optim/optimizer.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// Tensors start at multiples of this many elements, which aligns every view for vector loads in any dtype.
constexpr int64_t kAlignElements = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

TensorId declare_flat(Builder& b, std::string path, DType dtype, int64_t elements, Category category, Scope scope) {
  Tensor t;
  t.path = std::move(path);
  t.dtype = dtype;
  t.shape = Shape{elements};
  t.category = category;
  t.scope = scope;
  return b.declare(std::move(t));
}

void make_view(Tensor& tensor, TensorId of, int64_t offset_elements) {
  tensor.view_of = of;
  tensor.view_offset_bytes = static_cast<int64_t>(bytes_of(tensor.dtype, static_cast<size_t>(offset_elements)));
}

CommAttrs over(GroupKind group, int size) {
  return {.group = group, .group_size = size};
}

EmitOptions in_place(TensorId tensor, Stream stream) {
  return {.stream = stream, .out = {tensor}};
}

BucketAttrs attrs_of(const Bucket& bucket, const Layout& layout) {
  return {.shard_group = GroupKind::kDpCp,
          .group_size = layout.dp,
          .sharded = layout.shard_optimizer(),
          .ranges = bucket.ranges};
}

}  // namespace

namespace {

// One bucket of the weights that live in `space`.
Bucket bucket_in(Builder& b, const Layout& layout, Space space, const std::string& path) {
  Program& program = b.program();
  std::vector<TensorId> weights;
  for (size_t i = 0; i < program.tensors.size(); ++i)
    if (program.tensors[i].main_grad != kNoTensor && program.tensors[i].space == space)
      weights.push_back(static_cast<TensorId>(i));
  std::stable_sort(weights.begin(), weights.end(), [&](TensorId x, TensorId y) {
    return program.tensor(x).partial_over_tp > program.tensor(y).partial_over_tp;
  });
  Bucket bucket;
  int64_t offset = 0;
  for (TensorId id : weights) {
    const Tensor& t = program.tensor(id);
    bucket.ranges.push_back({t.path, offset, t.shape.elements(), t.weight_decay, layout.tp > 1 && t.cuts.empty()});
    offset = round_up(offset + t.shape.elements(), kAlignElements);
    if (t.partial_over_tp) bucket.partial_elements = offset;
  }
  bucket.elements = round_up(offset, kAlignElements * layout.dp);
  bucket.weights =
      declare_flat(b, path + ".weights", layout.compute, bucket.elements, Category::kWeight, Scope::kPersistent);
  bucket.main_grads =
      declare_flat(b, path + ".main_grads", DType::kF32, bucket.elements, Category::kMainGrad, Scope::kStep);
  program.tensor(bucket.weights).space = space;
  for (size_t i = 0; i < weights.size(); ++i) {
    make_view(program.tensor(weights[i]), bucket.weights, bucket.ranges[i].offset);
    make_view(program.tensor(program.tensor(weights[i]).main_grad), bucket.main_grads, bucket.ranges[i].offset);
  }
  return bucket;
}

}  // namespace

std::vector<Bucket> bucket_weights(Builder& b, const Layout& layout) {
  std::vector<Bucket> buckets{bucket_in(b, layout, Space::kDevice, "bucket0")};
  const auto& tensors = b.program().tensors;
  if (std::any_of(tensors.begin(), tensors.end(),
                  [](const Tensor& t) { return t.main_grad != kNoTensor && t.space == Space::kHost; }))
    buckets.push_back(bucket_in(b, layout, Space::kHost, "bucket1"));
  return buckets;
}

void build_grad_sync(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    const std::string path = fmt::format("grad_sync.bucket{}", i);
    if (bucket.partial_elements > 0) {
      const TensorId partial = b.view(bucket.main_grads, path + ".partial", Shape{bucket.partial_elements}, 0);
      b.emit(kAllReduce, path + ".partial.all_reduce", {partial}, over(GroupKind::kTp, layout.tp),
             in_place(partial, Stream::kTp));
    }
    if (layout.dp == 1) continue;
    CommAttrs attrs = over(GroupKind::kDpCp, layout.dp);
    attrs.own_shard = layout.shard_optimizer();
    b.emit(attrs.own_shard ? kReduceScatter : kAllReduce, path + (attrs.own_shard ? ".reduce_scatter" : ".all_reduce"),
           {bucket.main_grads}, attrs, in_place(bucket.main_grads, Stream::kDp));
  }
  if (layout.dp > 1)
    for (TensorId sum : b.program().ports.step_sums)
      b.emit(kAllReduce, "grad_sync." + b.tensor(sum).path + ".all_reduce", {sum}, over(GroupKind::kDpCp, layout.dp),
             in_place(sum, Stream::kDp));
  const TensorId loss = b.program().ports.loss_sum;
  if (b.program().ports.labels == kNoTensor)
    b.emit(kFill, "grad_sync.loss.zero", {loss}, NoAttrs{}, in_place(loss, Stream::kCompute));
  if (layout.pp > 1)
    b.emit(kAllReduce, "grad_sync.loss.all_reduce_pp", {loss}, over(GroupKind::kPp, layout.pp),
           in_place(loss, Stream::kDp));
  if (layout.dp > 1)
    b.emit(kAllReduce, "grad_sync.loss.all_reduce_dp", {loss}, over(GroupKind::kDpCp, layout.dp),
           in_place(loss, Stream::kDp));
}

void build_optimizer(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  const OptimizerConfig& o = layout.config.optimizer;
  const Ports& ports = b.program().ports;
  const bool sharded = layout.shard_optimizer();
  const TensorId squares = declare_flat(b, "optimizer.grad_squares", DType::kF64, static_cast<int64_t>(buckets.size()),
                                        Category::kStep, Scope::kStep);
  for (size_t i = 0; i < buckets.size(); ++i) {
    const TensorId mine =
        b.view(squares, fmt::format("optimizer.grad_squares.{}", i), Shape{1}, static_cast<int64_t>(i));
    b.emit(kGradSquareSum, fmt::format("optimizer.bucket{}.grad_square_sum", i), {buckets[i].main_grads},
           attrs_of(buckets[i], layout), {.out = {mine}});
  }
  if (layout.tp * layout.pp > 1)
    b.emit(kAllReduce, "optimizer.grad_squares.all_reduce_model", {squares},
           over(GroupKind::kModel, layout.tp * layout.pp), in_place(squares, Stream::kDp));
  if (sharded)
    b.emit(kAllReduce, "optimizer.grad_squares.all_reduce_dp", {squares}, over(GroupKind::kDpCp, layout.dp),
           in_place(squares, Stream::kDp));
  b.emit(kGradScale, "optimizer.grad_scale", {squares, ports.loss_sum}, ScaleAttrs{o.clip_grad},
         {.out = {ports.grad_scale}});

  for (size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    const std::string path = fmt::format("optimizer.bucket{}", i);
    const int64_t shard = sharded ? bucket.elements / layout.dp : bucket.elements;
    const auto state = [&](const char* what, Category category) {
      return declare_flat(b, path + what, DType::kF32, shard, category, Scope::kPersistent);
    };
    const TensorId exp_avg = state(".exp_avg", Category::kMoment);
    const TensorId exp_avg_sq = state(".exp_avg_sq", Category::kMoment);
    std::vector<TensorId> in{bucket.main_grads, bucket.weights,    exp_avg,
                             exp_avg_sq,        ports.step_record, ports.grad_scale};
    std::vector<TensorId> out{bucket.weights, exp_avg, exp_avg_sq};
    if (layout.has_master()) {
      const TensorId master = state(".master", Category::kMaster);
      in.push_back(master);
      out.push_back(master);
    }
    const AdamAttrs attrs{attrs_of(bucket, layout), static_cast<float>(o.adam_beta1), static_cast<float>(o.adam_beta2),
                          static_cast<float>(o.adam_eps), static_cast<float>(o.weight_decay)};
    b.emit(kAdamW, path + ".adamw", in, attrs, {.out = out});
    if (!sharded) continue;
    CommAttrs gather = over(GroupKind::kDpCp, layout.dp);
    gather.own_shard = true;
    b.emit(kAllGather, path + ".all_gather", {bucket.weights}, gather, in_place(bucket.weights, Stream::kDp));
  }
}

}  // namespace mbb::trainer
