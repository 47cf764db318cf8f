// Norm, AdamW and the gather of parameters as ops.
#include "trainer/optim/optimizer.h"

#include <fmt/core.h>

#include <limits>

#include "trainer/data/rng.h"
#include "trainer/ops/table.h"
#include "trainer/optim/sharding.h"
#include "trainer/optim/shared_weights.h"
#include "trainer/optim/state_forms.h"
#include "trainer/passes/overlap_data_parallel.h"

namespace mbb::trainer {
namespace {

CommAttrs over(GroupKind group, int size) {
  return {.group = group, .group_size = size};
}

EmitOptions in_place(TensorId tensor, Stream stream = Stream::kCompute) {
  return {.stream = stream, .out = {tensor}};
}

// Squares of all buckets' shards, dense and expert: each kind is summed over its shards and over the ranks that hold
// the model once.
class Squares {
 public:
  Squares(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets)
      : b_(b), layout_(layout), buckets_(buckets) {}

  // f64 [1] or more: their sum is the square of the norm.
  TensorId build() {
    const auto n = static_cast<int64_t>(buckets_.size());
    const TensorId each =
        n == 0 ? kNoTensor : declare_flat(b_, "optimizer.grad_squares", DType::kF64, n, Category::kStep, Scope::kStep);
    for (int64_t i = 0; i < n; ++i) {
      const Bucket& bucket = buckets_[static_cast<size_t>(i)];
      b_.emit(kGradSquareSum, "optimizer." + bucket.path + ".grad_square_sum", {bucket.main_grads}, attrs_of(bucket),
              {.out = {part(each, i)}});
    }
    // Every stage calls the same collectives, whatever buckets it has.
    const bool experts = layout_.model.is_moe();
    if (n > 0 && !reduced(false) && !(experts && reduced(true))) return each;
    if (n == 1 && !experts) {
      reduce(each, false, "");
      return each;
    }
    const TensorId sums =
        declare_flat(b_, "optimizer.grad_square_sums", DType::kF64, experts ? 2 : 1, Category::kStep, Scope::kStep);
    total(each, part(sums, 0), false, "dense");
    reduce(part(sums, 0), false, "");
    if (!experts) return sums;
    total(each, part(sums, 1), true, "experts");
    reduce(part(sums, 1), true, "experts.");
    return sums;
  }

 private:
  TensorId part(TensorId of, int64_t i) {
    if (b_.tensor(of).shape.elements() == 1) return of;
    return b_.view(of, fmt::format("{}.{}", b_.tensor(of).path, i), Shape{1}, i);
  }
  bool reduced(bool expert) const {
    const ReplicaGroups g = replica_groups(layout_, expert);
    return g.model_size > 1 || g.shard_size > 1;
  }
  // Buckets of one kind need not be neighbours: their squares are named one by one.
  void total(TensorId each, TensorId out, bool expert, const char* name) {
    std::vector<TensorId> mine;
    for (size_t i = 0; i < buckets_.size(); ++i)
      if (buckets_[i].expert == expert) mine.push_back(part(each, static_cast<int64_t>(i)));
    b_.emit(kScalarSum, fmt::format("optimizer.grad_squares.{}", name), mine, NoAttrs{}, {.out = {out}});
  }
  void reduce(TensorId sum, bool expert, const std::string& name) {
    const ReplicaGroups g = replica_groups(layout_, expert);
    const std::string path = "optimizer.grad_squares." + name;
    if (g.model_size > 1)
      b_.emit(kAllReduce, path + "all_reduce_model", {sum}, over(g.model, g.model_size), in_place(sum, Stream::kDp));
    if (g.shard_size > 1)
      b_.emit(kAllReduce, path + "all_reduce_dp", {sum}, over(g.shard, g.shard_size), in_place(sum, Stream::kDp));
  }

  Builder& b_;
  const Layout& layout_;
  const std::vector<Bucket>& buckets_;
};

// FP8 weights and their scales from the master: a scale is of the whole tensor, whose parts lie in several shards.
void write_fp8(Builder& b, const Bucket& bucket, const std::string& path, TensorId master) {
  const ReplicaGroups& g = bucket.groups;
  const TensorId amax = declare_flat(b, path + ".amax", DType::kF32, static_cast<int64_t>(bucket.ranges.size()),
                                     Category::kStep, Scope::kStep);
  b.emit(kBucketAmax, path + ".amax", {master}, attrs_of(bucket), {.out = {amax}});
  if (g.sharded()) {
    CommAttrs largest = over(g.shard, g.shard_size);
    largest.reduce = ReduceKind::kMax;
    b.emit(kAllReduce, path + ".amax.all_reduce", {amax}, largest, in_place(amax, Stream::kDp));
  }
  std::vector<TensorId> in{master, amax, bucket.weights}, out{bucket.weights};
  for (const TensorId weight : bucket.members) {
    out.push_back(b.tensor(weight).scales);
    if (b.tensor(weight).scale_state != kNoTensor) in.push_back(b.tensor(weight).scale_state);
  }
  b.emit(kBucketQuantize, path + ".quantize", in, attrs_of(bucket), {.out = out});
}

void adamw(Builder& b, const Layout& layout, const Bucket& bucket) {
  const OptimizerConfig& o = layout.config.optimizer;
  const Ports& ports = b.program().ports;
  const std::string path = "optimizer." + bucket.path;
  const int64_t shard = bucket.elements / bucket.groups.shard_size;
  const StateForms forms = state_forms(layout, b.tensor(bucket.weights).dtype);
  const auto state = [&](const char* what, DType dtype, Category category) {
    return declare_flat(b, path + what, dtype, shard, category, Scope::kPersistent);
  };
  const TensorId exp_avg = state(".exp_avg", forms.exp_avg, Category::kMoment);
  const TensorId exp_avg_sq = state(".exp_avg_sq", forms.exp_avg_sq, Category::kMoment);
  std::vector<TensorId> in{bucket.main_grads, bucket.weights, exp_avg, exp_avg_sq, ports.step_record, ports.grad_scale};
  std::vector<TensorId> out{bucket.weights, exp_avg, exp_avg_sq};
  const auto update = [&](TensorId id) {
    in.push_back(id);
    out.push_back(id);
  };
  if (forms.master == MasterForm::kState) update(state(".master", DType::kF32, Category::kMaster));
  if (forms.master == MasterForm::kRemainder) update(state(".remainder", DType::kU16, Category::kMaster));
  if (forms.master == MasterForm::kScaled) update(state(".master", DType::kF16, Category::kMaster));
  if (forms.scaled()) {
    Tensor scales;
    scales.path = path + ".moment_scales";
    scales.shape = Shape{forms.scale_rows(), static_cast<int64_t>(bucket.ranges.size())};
    scales.category = Category::kMoment;
    scales.scope = Scope::kPersistent;
    update(b.declare(std::move(scales)));
  }
  AdamAttrs attrs{attrs_of(bucket), static_cast<float>(o.adam_beta1), static_cast<float>(o.adam_beta2),
                  static_cast<float>(o.adam_eps), static_cast<float>(o.weight_decay)};
  attrs.master = forms.master;
  attrs.scaled = forms.scaled();
  // Buckets draw numbers of their own.
  attrs.seed =
      static_cast<int64_t>(rng_stream(static_cast<uint64_t>(layout.config.train.seed), path_hash(path)) & 0xffffffffU);
  b.emit(kAdamW, path + ".adamw", in, attrs, {.out = out});
  if (b.tensor(bucket.weights).dtype == DType::kE4M3) write_fp8(b, bucket, path, in[6]);
}

}  // namespace

bool updates(const Op& op, const Bucket& bucket) {
  const bool kind = op.kind == &kAdamW || op.kind == &kBucketAmax || op.kind == &kBucketQuantize ||
                    (op.kind == &kAllReduce && op.path.ends_with(".amax.all_reduce"));
  return kind && op.path.starts_with("optimizer." + bucket.path + ".");
}

void build_grad_sync(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  sync_shared_weights(b, layout, buckets);
  for (const Bucket& bucket : buckets) {
    const std::string path = "grad_sync." + bucket.path;
    const ReplicaGroups& g = bucket.groups;
    if (bucket.partial_elements > 0 && !bucket.grads_sharded) {
      const TensorId partial = b.view(bucket.main_grads, path + ".partial", Shape{bucket.partial_elements}, 0);
      b.emit(kAllReduce, path + ".partial.all_reduce", {partial}, over(g.tensor, g.tensor_size),
             in_place(partial, Stream::kTp));
    }
    // On the compute stream nothing overlaps with these: the overlap passes move them.
    const TensorId grads = bucket.main_grads;
    if (g.sharded() && !bucket.grads_sharded) {
      CommAttrs scatter = over(g.shard, g.shard_size);
      scatter.own_shard = true;
      b.emit(kReduceScatter, path + ".reduce_scatter", {grads}, scatter, in_place(grads));
    }
    if (g.sharded() && g.replica_size > 1) {
      CommAttrs sum = over(g.replica, g.replica_size);
      if (!bucket.grads_sharded) sum.shards = g.shard_size, sum.shard_group = g.shard;
      b.emit(kAllReduce, path + ".all_reduce_instances", {grads}, sum, in_place(grads));
    }
    if (!g.sharded() && g.all_size > 1)
      b.emit(kAllReduce, path + ".all_reduce", {grads}, over(g.all, g.all_size), in_place(grads));
  }
  const ReplicaGroups dense = replica_groups(layout, false);
  const auto sum_over_replicas = [&](TensorId sum, const std::string& path) {
    if (dense.all_size > 1)
      b.emit(kAllReduce, path, {sum}, over(dense.all, dense.all_size), in_place(sum, Stream::kDp));
  };
  for (TensorId sum : b.program().ports.step_sums)
    sum_over_replicas(sum, "grad_sync." + b.tensor(sum).path + ".all_reduce");
  const TensorId loss = b.program().ports.loss_sum;
  if (b.program().ports.labels == kNoTensor) b.emit(kFill, "grad_sync.loss.zero", {loss}, NoAttrs{}, in_place(loss));
  if (layout.has_encoder_mesh()) {
    // The last stage's TP ranks hold the sums and all others zeros: the largest is the value.
    CommAttrs largest = over(GroupKind::kModel, layout.model_ranks());
    largest.reduce = ReduceKind::kMax;
    b.emit(kAllReduce, "grad_sync.loss.all_reduce_model", {loss}, largest, in_place(loss, Stream::kDp));
  } else if (layout.pp > 1) {
    b.emit(kAllReduce, "grad_sync.loss.all_reduce_pp", {loss}, over(GroupKind::kPp, layout.pp),
           in_place(loss, Stream::kDp));
  }
  sum_over_replicas(loss, "grad_sync.loss.all_reduce_dp");
}

void build_optimizer(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  const Ports& ports = b.program().ports;
  const TensorId squares = Squares(b, layout, buckets).build();
  b.emit(kGradScale, "optimizer.grad_scale", {squares, ports.loss_sum}, ScaleAttrs{layout.config.optimizer.clip_grad},
         {.out = {ports.grad_scale}});
  for (const Bucket& bucket : buckets) adamw(b, layout, bucket);
  for (const Bucket& bucket : buckets) {
    if (!bucket.groups.sharded() || bucket.weights_sharded) continue;
    CommAttrs gather = over(bucket.groups.shard, bucket.groups.shard_size);
    gather.own_shard = true;
    b.emit(kAllGather, "optimizer." + bucket.path + ".all_gather", {bucket.weights}, gather, in_place(bucket.weights));
  }
}

DataParallel build_data_parallel(Builder& b, const Layout& layout, PassLog& passes) {
  const DataParallelConfig& d = layout.config.data_parallel;
  DataParallel dp;
  const auto pass = [&](const char* name, bool on, auto&& run) {
    passes.run(name, fmt::format("data_parallel.{}", name), on, run);
  };
  pass("defer_embedding_wgrad_compute", d.defer_embedding_wgrad_compute, [&] {
    if (b.program().ports.labels != kNoTensor)
      dp.deferred_wgrad = defer_head_wgrad(b, b.program().segments.back().chunk);
  });
  const bool hides_embedding =
      d.overlap_grad_reduce && replica_groups(layout, false).all_size > 1 && layout.tp_overlap.empty() &&
      (layout.shards_gradients() || layout.bucket_elements() < std::numeric_limits<int64_t>::max());
  for (size_t s = 0; hides_embedding && s < b.program().segments.size(); ++s)
    if (b.program().segments[s].kind == SegmentKind::kBackward)
      put_wgrads_behind_embedding(b.program(), static_cast<int>(s));
  dp.buckets = bucket_weights(b, layout);
  shard_units(b, layout, dp.buckets);
  dp.grad_sync = b.add_segment("grad_sync", SegmentKind::kGradSync, 0);
  build_grad_sync(b, layout, dp.buckets);
  dp.optimizer = b.add_segment("optimizer", SegmentKind::kOptimizer, 0);
  build_optimizer(b, layout, dp.buckets);
  // Collectives of sharded units were built on their streams: there the passes see only what is left, and nothing is
  // said of them where that is nothing.
  const auto reduce = [&] { overlap_grad_reduce(b.program(), dp.buckets); };
  if (layout.shards_gradients() && d.overlap_grad_reduce)
    reduce();
  else
    pass("overlap_grad_reduce", d.overlap_grad_reduce, reduce);
  const auto gather = [&] {
    overlap_param_gather(b, dp, {d.align_param_gather, d.overlap_param_gather_with_optimizer_step});
  };
  if (layout.shards_parameters() && d.overlap_param_gather)
    gather();
  else
    pass("overlap_param_gather", d.overlap_param_gather, gather);
  pass("overlap_optimizer_with_forward", d.overlap_optimizer_with_forward,
       [&] { overlap_optimizer_with_forward(b, dp); });
  return dp;
}

void schedule_data_parallel(Program& program, const DataParallel& dp) {
  schedule_aligned_gathers(program, dp.param_gathers, program.rank_class.pp);
  if (dp.deferred_wgrad >= 0)
    for (int m = 0; m < program.micro_batches; ++m) program.schedule.push_back({dp.deferred_wgrad, m});
  program.schedule.push_back({dp.grad_sync, 0});
  program.schedule.push_back({dp.optimizer, 0});
}

}  // namespace mbb::trainer
