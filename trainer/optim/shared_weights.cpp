// The sums over holders as ops, in one order on all of them: by the declaration of the weights.
#include "trainer/optim/shared_weights.h"

#include <map>

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

class SharedGradient {
 public:
  // `gradient`: of the whole weight, or the shard of it.
  SharedGradient(Builder& b, const Layout& layout, TensorId gradient, const std::string& weight)
      : b_(b), l_(layout), grad_(gradient), path_("grad_sync." + weight) {}

  void encoder_to_decoder() {
    if (l_.role == MeshRole::kEncoder) {
      send(Direction::kForward, ".to_decoder");
      return;
    }
    const Tensor& g = b_.tensor(grad_);
    CommAttrs attrs = between_meshes(Direction::kForward);
    attrs.message = g.shape;
    attrs.message_dtype = g.dtype;
    const TensorId encoder = b_.emit1(kReshardRecv, path_ + ".from_encoder", {}, attrs,
                                      {.stream = Stream::kDp, .category = Category::kComm});
    b_.emit(kAdd, path_ + ".add_encoder", {grad_, encoder}, NoAttrs{}, {.out = {grad_}});
  }
  void over_stages(GroupKind group) {
    const int size = group == GroupKind::kEmbedding ? 2 : l_.pp;
    b_.emit(kAllReduce, path_ + ".all_reduce_" + name(group), {grad_}, CommAttrs{.group = group, .group_size = size},
            {.stream = Stream::kDp, .out = {grad_}});
  }
  void decoder_to_encoder() {
    if (l_.role == MeshRole::kDecoder) {
      send(Direction::kBackward, ".to_encoder");
      return;
    }
    CommAttrs attrs = between_meshes(Direction::kBackward);
    attrs.message = b_.tensor(grad_).shape;
    attrs.message_dtype = b_.tensor(grad_).dtype;
    b_.emit(kReshardRecv, path_ + ".from_decoder", {}, attrs, {.stream = Stream::kDp, .out = {grad_}});
  }

 private:
  CommAttrs between_meshes(Direction direction) const {
    return {.group = GroupKind::kModel, .group_size = l_.model_ranks(), .direction = direction};
  }
  void send(Direction direction, const char* suffix) {
    b_.emit(kReshardSend, path_ + suffix, {grad_}, between_meshes(direction), {.stream = Stream::kDp});
  }

  Builder& b_;
  const Layout& l_;
  TensorId grad_;
  std::string path_;
};

}  // namespace

void sync_shared_weights(Builder& b, const Layout& layout, const std::vector<Bucket>& buckets) {
  std::map<TensorId, TensorId> shared;  // weight -> its gradient, in the order of declaration on every holder
  for (const Bucket& bucket : buckets) {
    for (const TensorId weight : bucket.members) {
      const Tensor& t = b.tensor(weight);
      if (!t.sharing.shared()) continue;
      MB_CHECK(!bucket.grads_sharded || bucket.members.size() == 1,
               "a shared weight beside others in a unit: " + t.path);
      shared[weight] = bucket.grads_sharded ? bucket.main_grads : t.main_grad;
    }
  }
  for (const auto& [weight, grad] : shared) {
    const Tensor t = b.tensor(weight);
    SharedGradient gradient(b, layout, grad, t.path);
    if (t.sharing.meshes) gradient.encoder_to_decoder();
    if (t.sharing.group) gradient.over_stages(*t.sharing.group);
    if (t.sharing.meshes) gradient.decoder_to_encoder();
  }
}

}  // namespace mbb::trainer
