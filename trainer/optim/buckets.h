// Flat buckets of parameters: what data parallelism reduces, shards and gathers at once.
//
// A bucket holds whole tensors that the same ranks replicate, each in a place of its own, padded to the sharding degree
// so that a shard may cut a tensor at any element. Every weight and main gradient of the program becomes a view: into
// the bucket's flat buffers where those are whole, into a slot that is gathered or scattered where they are sharded
// (sharding.h).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/ops/attrs.h"
#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// The ranks that a parameter's replicas are on, for dense parameters and for experts.
struct ReplicaGroups {
  GroupKind all = GroupKind::kDpCp;             // every replica: gradients are summed over them
  GroupKind shard = GroupKind::kDpCp;           // one shard of the states each: `all`, or one optimizer instance
  GroupKind replica = GroupKind::kDpCpReplica;  // the same shard, one an instance
  int all_size = 1;
  int shard_size = 1;  // 1: the states are not sharded
  int replica_size = 1;
  GroupKind model = GroupKind::kModel;  // together they hold every parameter once: the norm
  int model_size = 1;
  GroupKind tensor = GroupKind::kTp;  // share a cut tensor, hold others whole
  Axis tensor_axis = Axis::kTp;
  int tensor_size = 1;

  bool sharded() const { return shard_size > 1; }
};
ReplicaGroups replica_groups(const Layout& layout, bool expert);

struct Bucket {
  std::string path;  // "bucket0", or "units.layers.3" where gradients are sharded
  std::string
      unit;       // "layers.3": buckets of a unit are gathered and scattered together; empty where gradients stay whole
  int chunk = 0;  // model chunk whose forward reads it first
  bool expert = false;
  Space space = Space::kDevice;  // where the weights live; in host memory they are whole
  ReplicaGroups groups;
  // Flat [elements] and views of it, or this rank's shard of it alone: [elements / shard_size].
  TensorId weights = kNoTensor;     // of the members' type
  TensorId main_grads = kNoTensor;  // Layout::main_grad_type
  bool weights_sharded = false;
  bool grads_sharded = false;
  int64_t elements = 0;             // with padding
  int64_t partial_elements = 0;     // leading elements whose gradients are partial sums over groups.tensor
  std::vector<TensorId> members;    // weights, as in `ranges`
  std::vector<BucketRange> ranges;  // in the order of offsets
};

TensorId declare_flat(Builder& builder, std::string path, DType dtype, int64_t elements, Category category,
                      Scope scope);
// Tensors that become views, with their own views, all at once: one at a time would look through the program for the
// views of each.
class NewViews {
 public:
  // `tensor` becomes a view into `storage`, from this element of its type on.
  void add(TensorId tensor, TensorId storage, int64_t offset_elements);
  void apply(Program& program);

 private:
  struct Place {
    TensorId storage = kNoTensor;
    int64_t offset_elements = 0;
  };
  std::unordered_map<TensorId, Place> places_;
};
// What ops over a bucket's shard carry.
BucketAttrs attrs_of(const Bucket& bucket);

// Distributes all weights that train over buckets, and declares the buckets' buffers. Buckets stand in the order in
// which the backward completes their gradients. Where gradients stay whole, a bucket is cut as soon as it holds
// Layout::bucket_elements(); where they are sharded, a bucket is a layer (a unit).
std::vector<Bucket> bucket_weights(Builder& builder, const Layout& layout);

}  // namespace mbb::trainer
