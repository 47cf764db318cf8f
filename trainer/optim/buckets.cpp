// Which parameter goes into which bucket, and where in it.
#include "trainer/optim/buckets.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "trainer/passes/layers.h"

namespace mbb::trainer {
namespace {

// Tensors start at multiples of this many elements, which aligns every view for vector loads in any dtype.
constexpr int64_t kAlignElements = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Where the program uses a weight; positions count the ops of all segments.
struct WeightUse {
  TensorId weight = kNoTensor;
  int chunk = 0;
  size_t first_read = std::numeric_limits<size_t>::max();
  size_t last_write = 0;  // of its gradient
  bool deferred = false;  // that write stands behind all micro-batches' backwards
  std::string unit;       // weights that are gathered together
};

std::vector<WeightUse> uses_of_weights(const Program& program) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<WeightUse> uses;
  std::vector<size_t> of_weight(program.tensors.size(), kNone), of_grad(program.tensors.size(), kNone);
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].main_grad == kNoTensor) continue;
    of_weight[i] = of_grad[static_cast<size_t>(program.tensors[i].main_grad)] = uses.size();
    uses.emplace_back().weight = static_cast<TensorId>(i);
  }
  size_t at = 0;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      ++at;
      for (TensorId id : op.in) {
        const size_t of = of_weight[static_cast<size_t>(id)];
        if (of == kNone || uses[of].first_read < at) continue;
        uses[of].first_read = at;
        uses[of].chunk = segment.chunk;
      }
      for (TensorId id : op.out)
        if (const size_t of = of_grad[static_cast<size_t>(id)]; of != kNone) {
          uses[of].last_write = at;
          uses[of].deferred = segment.kind == SegmentKind::kWgrad;
        }
    }
  }
  return uses;
}

// A layer is a unit; what lies between two layers is one too, named after its first weight.
void name_units(const Program& program, std::vector<WeightUse>& uses) {
  std::stable_sort(uses.begin(), uses.end(),
                   [](const WeightUse& a, const WeightUse& b) { return a.first_read < b.first_read; });
  std::string between;
  for (WeightUse& use : uses) {
    const std::string& path = program.tensor(use.weight).path;
    // Weights that other stages hold too make a unit of their own, cut alike there; so do those whose gradients come
    // later than their neighbours', which are scattered in every micro-batch.
    use.unit = program.tensor(use.weight).sharing.shared() || use.deferred ? path : layer_of(path);
    if (!use.unit.empty()) {
      use.unit.pop_back();  // the dot
      between.clear();
      continue;
    }
    if (between.empty()) between = path.ends_with(".weight") ? path.substr(0, path.size() - 7) : path;
    use.unit = between;
  }
}

bool cut_over(const Tensor& tensor, Axis axis) {
  return std::any_of(tensor.cuts.begin(), tensor.cuts.end(), [&](const Cut& cut) { return cut.axis == axis; });
}

// Gives each member its place.
void lay_out(const Program& program, Bucket& bucket) {
  std::stable_sort(bucket.members.begin(), bucket.members.end(), [&](TensorId x, TensorId y) {
    return program.tensor(x).partial_over_tp > program.tensor(y).partial_over_tp;
  });
  int64_t offset = 0;
  for (TensorId id : bucket.members) {
    const Tensor& t = program.tensor(id);
    const bool replicated = bucket.groups.tensor_size > 1 && !cut_over(t, bucket.groups.tensor_axis);
    bucket.ranges.push_back({t.path, offset, t.shape.elements(), t.weight_decay, replicated, t.sharing.counted});
    offset = round_up(offset + t.shape.elements(), kAlignElements);
    if (t.partial_over_tp) bucket.partial_elements = offset;
  }
  bucket.elements = round_up(offset, kAlignElements * bucket.groups.shard_size);
}

void declare_buffers(Builder& b, const Layout& layout, Bucket& bucket, NewViews& views) {
  const int64_t shard = bucket.elements / bucket.groups.shard_size;
  bucket.weights_sharded = layout.shards_parameters() && bucket.groups.sharded() && bucket.space == Space::kDevice;
  bucket.grads_sharded = layout.shards_gradients() && bucket.groups.sharded();
  bucket.weights =
      declare_flat(b, bucket.path + ".weights", b.tensor(bucket.members[0]).dtype,
                   bucket.weights_sharded ? shard : bucket.elements, Category::kWeight, Scope::kPersistent);
  b.program().tensor(bucket.weights).space = bucket.space;
  bucket.main_grads = declare_flat(b, bucket.path + ".main_grads", layout.main_grad_type(),
                                   bucket.grads_sharded ? shard : bucket.elements, Category::kMainGrad, Scope::kStep);
  for (size_t i = 0; i < bucket.members.size(); ++i) {
    const TensorId weight = bucket.members[i];
    if (!bucket.weights_sharded) views.add(weight, bucket.weights, bucket.ranges[i].offset);
    if (!bucket.grads_sharded) views.add(b.tensor(weight).main_grad, bucket.main_grads, bucket.ranges[i].offset);
  }
}

}  // namespace

ReplicaGroups replica_groups(const Layout& layout, bool expert) {
  const ParallelSizes& s = layout.mesh.sizes();
  ReplicaGroups g;
  if (expert) {
    g.all = GroupKind::kEdp;
    g.replica = GroupKind::kEdpReplica;
    g.model = GroupKind::kExpertModel;
    g.tensor = GroupKind::kEtp;
    g.tensor_axis = Axis::kEtp;
  }
  g.all_size = expert ? layout.mesh.edp() : s.dp * s.cp;
  g.model_size = expert ? s.etp * s.ep * s.pp : layout.model_ranks();
  g.tensor_size = expert ? s.etp : layout.tp;
  g.shard = g.all;
  if (!layout.shards_states()) return g;
  if (s.dp_instances > 1) g.shard = expert ? GroupKind::kEdpShard : GroupKind::kDpCpShard;
  g.replica_size = s.dp_instances;
  g.shard_size = g.all_size / s.dp_instances;
  return g;
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

void NewViews::add(TensorId tensor, TensorId storage, int64_t offset_elements) {
  places_[tensor] = {storage, offset_elements};
}

void NewViews::apply(Program& program) {
  const auto bytes_at = [&](TensorId id, const Place& place) {
    return static_cast<int64_t>(bytes_of(program.tensor(id).dtype, static_cast<size_t>(place.offset_elements)));
  };
  for (Tensor& t : program.tensors) {
    const auto of = places_.find(t.view_of);
    if (t.view_of == kNoTensor || of == places_.end()) continue;
    t.view_offset_bytes += bytes_at(of->first, of->second);
    t.view_of = of->second.storage;
  }
  for (const auto& [id, place] : places_) {
    program.tensor(id).view_of = place.storage;
    program.tensor(id).view_offset_bytes = bytes_at(id, place);
  }
  places_.clear();
}

BucketAttrs attrs_of(const Bucket& bucket) {
  return {.shard_group = bucket.groups.shard,
          .group_size = bucket.groups.shard_size,
          .sharded = bucket.groups.sharded(),
          .elements = bucket.elements,
          .replica_axis = bucket.groups.tensor_axis,
          .ranges = bucket.ranges};
}

std::vector<Bucket> bucket_weights(Builder& b, const Layout& layout) {
  Program& program = b.program();
  std::vector<WeightUse> uses = uses_of_weights(program);
  if (layout.shards_gradients()) name_units(program, uses);
  std::stable_sort(uses.begin(), uses.end(), [](const WeightUse& x, const WeightUse& y) {
    return x.chunk != y.chunk ? x.chunk > y.chunk : x.last_write < y.last_write;
  });
  struct Open {
    size_t bucket = 0;
    int64_t elements = 0;
  };
  std::vector<Bucket> buckets;
  std::map<std::tuple<int, bool, Space, std::string, DType>, Open> open;
  for (const WeightUse& use : uses) {
    const Tensor& t = program.tensor(use.weight);
    const auto [at, added] = open.try_emplace({use.chunk, t.expert, t.space, use.unit, t.dtype});
    if (added || at->second.elements >= layout.bucket_elements()) {
      at->second = {buckets.size(), 0};
      Bucket bucket;
      bucket.path = use.unit.empty()
                        ? fmt::format("bucket{}", buckets.size())
                        : fmt::format("units.{}{}{}{}", use.unit, t.expert ? ".experts" : "",
                                      t.space == Space::kHost ? ".host" : "", t.dtype == DType::kE4M3 ? ".fp8" : "");
      bucket.unit = use.unit;
      bucket.chunk = use.chunk;
      bucket.expert = t.expert;
      bucket.space = t.space;
      bucket.groups = replica_groups(layout, t.expert);
      buckets.push_back(std::move(bucket));
    }
    buckets[at->second.bucket].members.push_back(use.weight);
    at->second.elements += round_up(t.shape.elements(), kAlignElements);
  }
  NewViews views;
  for (Bucket& bucket : buckets) {
    lay_out(program, bucket);
    declare_buffers(b, layout, bucket, views);
  }
  views.apply(program);
  return buckets;
}

}  // namespace mbb::trainer
