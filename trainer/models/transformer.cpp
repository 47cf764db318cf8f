// The decoder as ops: embedding, attention and MLP blocks with their tensor-parallel collectives, LM head and loss.
//
// Hidden states are [s, b, h]; with sequence parallelism norms and residuals work on [s/t, b, h], and a column-parallel
// layer's input is all-gathered, a row-parallel layer's output reduce-scattered along s.
#include "trainer/models/transformer.h"

#include <fmt/core.h>

#include <cmath>

#include "trainer/ops/table.h"
#include "trainer/optim/optimizer.h"
#include "trainer/program/autodiff.h"
#include "trainer/program/finish.h"
#include "trainer/schedule/pipeline.h"

namespace mbb::trainer {
namespace {

class ChunkBuilder {
 public:
  ChunkBuilder(Builder& builder, const Layout& layout, const Chunk& chunk) : b_(builder), l_(layout), chunk_(chunk) {}

  void forward();

 private:
  TensorId weight(const std::string& path, Shape full, std::vector<Cut> cuts, Init init);
  TensorId norm_weight(const std::string& path);
  TensorId input(const std::string& path);
  TensorId embedding();
  TensorId receive();
  TensorId norm(const std::string& path, TensorId x);
  TensorId linear(const std::string& path, TensorId x, TensorId w);
  TensorId gather(const std::string& path, TensorId x);   // into a column-parallel layer
  TensorId scatter(const std::string& path, TensorId x);  // out of a row-parallel layer
  TensorId attention(const std::string& path, TensorId x);
  TensorId mlp(const std::string& path, TensorId x);
  void head(TensorId x);

  CommAttrs tp_comm() const { return {.group = GroupKind::kTp, .group_size = l_.tp}; }
  Init normal() const { return {Init::Kind::kNormal, l_.config.optimizer.init_method_std}; }
  // Layers that write into the residual start smaller by the depth of the network.
  Init scaled_normal() const {
    return {Init::Kind::kNormal,
            l_.config.optimizer.init_method_std / std::sqrt(2.0 * static_cast<double>(l_.model.num_layers))};
  }

  Builder& b_;
  const Layout& l_;
  const Chunk& chunk_;
};

TensorId ChunkBuilder::weight(const std::string& path, Shape full, std::vector<Cut> cuts, Init init) {
  Tensor t;
  t.path = path;
  t.dtype = l_.compute;
  t.full_shape = full;
  t.shape = full;
  if (l_.tp == 1) cuts.clear();
  for (const Cut& cut : cuts) t.shape[cut.dim] /= l_.tp;
  t.cuts = std::move(cuts);
  t.category = Category::kWeight;
  t.scope = Scope::kPersistent;
  t.init = init;
  t.weight_decay = full.rank() > 1;
  t.partial_over_tp = t.cuts.empty() && l_.sequence_parallel;
  Tensor grad;
  grad.path = path + ".main_grad";
  grad.dtype = DType::kF32;
  grad.shape = t.shape;
  grad.category = Category::kMainGrad;
  grad.scope = Scope::kStep;
  t.main_grad = b_.declare(std::move(grad));
  return b_.declare(std::move(t));
}

TensorId ChunkBuilder::norm_weight(const std::string& path) {
  return weight(path, Shape{l_.model.hidden_size}, {}, {Init::Kind::kOnes, 0});
}

TensorId ChunkBuilder::input(const std::string& path) {
  Tensor t;
  t.path = path;
  t.dtype = DType::kI32;
  t.shape = Shape{l_.sequence, l_.micro_batch};
  t.category = Category::kInput;
  t.scope = Scope::kMicroBatch;
  return b_.declare(std::move(t));
}

TensorId ChunkBuilder::norm(const std::string& path, TensorId x) {
  return b_.emit(kRmsNorm, path + ".fwd", {x, norm_weight(path + ".weight")},
                 NormAttrs{static_cast<float>(l_.model.norm_eps), false}, {.out_path = path + ".out"})[0];
}

TensorId ChunkBuilder::linear(const std::string& path, TensorId x, TensorId w) {
  return b_.emit1(kGemm, path + ".fwd", {x, w}, GemmAttrs{false, true, false},
                  {.role = Role::kFprop, .out_path = path + ".out"});
}

TensorId ChunkBuilder::gather(const std::string& path, TensorId x) {
  if (l_.tp == 1) return x;
  if (!l_.sequence_parallel) return b_.emit1(kGroupIdentity, path + ".copy.fwd", {x}, tp_comm());
  return b_.emit1(kAllGather, path + ".all_gather.fwd", {x}, tp_comm(),
                  {.stream = Stream::kTp, .category = Category::kComm});
}

TensorId ChunkBuilder::scatter(const std::string& path, TensorId x) {
  if (l_.tp == 1) return x;
  if (!l_.sequence_parallel)
    return b_.emit1(kAllReduce, path + ".all_reduce.fwd", {x}, tp_comm(), {.stream = Stream::kTp});
  return b_.emit1(kReduceScatter, path + ".reduce_scatter.fwd", {x}, tp_comm(), {.stream = Stream::kTp});
}

TensorId ChunkBuilder::embedding() {
  const TensorId tokens = b_.program().ports.tokens = input("tokens");
  const TensorId table =
      weight("embedding.weight", Shape{l_.vocab, l_.model.hidden_size}, {{0, Axis::kTp, {}}}, normal());
  const TensorId x =
      b_.emit1(kEmbedding, "embedding.fwd", {tokens, table}, EmbeddingAttrs{}, {.out_path = "embedding.out"});
  return scatter("embedding", x);
}

TensorId ChunkBuilder::receive() {
  CommAttrs attrs{.group = GroupKind::kPp, .group_size = l_.pp, .direction = Direction::kForward};
  attrs.message = Shape{l_.sequence_parallel ? l_.sequence / l_.tp : l_.sequence, l_.micro_batch, l_.model.hidden_size};
  attrs.message_dtype = l_.compute;
  return b_.emit1(kRecv, "pipeline.recv.fwd", {}, attrs,
                  {.stream = Stream::kPpForward, .out_path = "pipeline.recv.out"});
}

TensorId ChunkBuilder::attention(const std::string& path, TensorId x) {
  const ModelShape& m = l_.model;
  const int64_t q = m.query_size();
  const int64_t kv = m.kv_size();
  const int heads = static_cast<int>(m.num_attention_heads / l_.tp);
  const int kv_heads = static_cast<int>(m.num_query_groups / l_.tp);
  const int d = static_cast<int>(m.head_dim);
  const TensorId w_qkv =
      weight(path + ".qkv.weight", Shape{q + 2 * kv, m.hidden_size}, {{0, Axis::kTp, {q, kv, kv}}}, normal());
  const TensorId w_proj = weight(path + ".proj.weight", Shape{m.hidden_size, q}, {{1, Axis::kTp, {}}}, scaled_normal());
  const TensorId qkv = linear(path + ".qkv", gather(path + ".qkv", x), w_qkv);
  const TensorId rotated =
      b_.emit1(kRope, path + ".rope.fwd", {qkv}, RopeAttrs{heads, kv_heads, d, m.rope.theta, false},
               {.out_path = path + ".rope.out"});
  const AttentionAttrs core{heads, kv_heads, d, true, static_cast<float>(m.softmax_scale())};
  const TensorId context =
      b_.emit(kAttention, path + ".core.fwd", {rotated}, core, {.out_path = path + ".core.out"})[0];
  return scatter(path + ".proj", linear(path + ".proj", context, w_proj));
}

TensorId ChunkBuilder::mlp(const std::string& path, TensorId x) {
  const int64_t h = l_.model.hidden_size;
  const int64_t f = l_.model.ffn_hidden_size;
  const TensorId w1 = weight(path + ".fc1.weight", Shape{2 * f, h}, {{0, Axis::kTp, {f, f}}}, normal());
  const TensorId w2 = weight(path + ".fc2.weight", Shape{h, f}, {{1, Axis::kTp, {}}}, scaled_normal());
  const TensorId gate_up = linear(path + ".fc1", gather(path + ".fc1", x), w1);
  const TensorId act = b_.emit1(kSwiglu, path + ".act.fwd", {gate_up}, NoAttrs{}, {.out_path = path + ".act.out"});
  return scatter(path + ".fc2", linear(path + ".fc2", act, w2));
}

void ChunkBuilder::head(TensorId x) {
  const TensorId labels = b_.program().ports.labels = input("labels");
  const TensorId w = weight("lm_head.weight", Shape{l_.vocab, l_.model.hidden_size}, {{0, Axis::kTp, {}}}, normal());
  const TensorId normed = gather("lm_head", norm("final_norm", x));
  const TensorId logits = b_.emit1(kGemm, "lm_head.fwd", {normed, w}, GemmAttrs{false, true, false},
                                   {.role = Role::kFprop, .category = Category::kLogits, .out_path = "lm_head.out"});
  TensorId maxima = b_.emit1(kCrossEntropyMax, "loss.max.fwd", {logits}, NoAttrs{});
  CommAttrs reduce_max = tp_comm();
  reduce_max.reduce = ReduceKind::kMax;
  if (l_.tp > 1)
    maxima = b_.emit1(kAllReduce, "loss.max.all_reduce.fwd", {maxima}, reduce_max, {.stream = Stream::kTp});
  TensorId sums = b_.emit1(kCrossEntropySum, "loss.sum.fwd", {logits, maxima, labels}, EmbeddingAttrs{});
  if (l_.tp > 1) sums = b_.emit1(kAllReduce, "loss.sum.all_reduce.fwd", {sums}, tp_comm(), {.stream = Stream::kTp});
  const TensorId total = b_.program().ports.loss_sum;
  b_.emit(kCrossEntropyLoss, "loss.fwd", {logits, maxima, sums, labels}, EmbeddingAttrs{false},
          {.when = When::kFirst, .out = {total}});
  b_.emit(kCrossEntropyLoss, "loss.fwd", {logits, maxima, sums, labels, total}, EmbeddingAttrs{true},
          {.when = When::kNotFirst, .out = {total}});
}

void ChunkBuilder::forward() {
  TensorId x = chunk_.embedding ? embedding() : receive();
  for (int64_t i = chunk_.first_layer; i < chunk_.first_layer + chunk_.num_layers; ++i) {
    const std::string path = fmt::format("layers.{}", i);
    const auto residual = [&](const std::string& name, TensorId branch) {
      return b_.emit1(kAdd, path + name + ".fwd", {x, branch}, NoAttrs{}, {.out_path = path + name + ".out"});
    };
    x = residual(".attn.residual", attention(path + ".attn", norm(path + ".attn.norm", x)));
    x = residual(".mlp.residual", mlp(path + ".mlp", norm(path + ".mlp.norm", x)));
  }
  if (chunk_.head) {
    head(x);
  } else {
    const CommAttrs attrs{.group = GroupKind::kPp, .group_size = l_.pp, .direction = Direction::kForward};
    b_.emit(kSend, "pipeline.send.fwd", {x}, attrs, {.stream = Stream::kPpForward});
  }
}

TensorId step_tensor(Builder& b, const char* path, DType dtype, Shape shape) {
  Tensor t;
  t.path = path;
  t.dtype = dtype;
  t.shape = shape;
  t.category = Category::kStep;
  t.scope = Scope::kStep;
  return b.declare(std::move(t));
}

}  // namespace

Program build_program(const Layout& layout, const RankClass& rank_class) {
  Program program;
  program.rank_class = rank_class;
  program.micro_batches = layout.micro_batches;
  Builder b(program);
  program.ports.step_record = step_tensor(b, "step.record", DType::kF32, Shape{StepRecord::kFields});
  program.ports.loss_sum = step_tensor(b, "step.loss_sum", DType::kF64, Shape{2});
  program.ports.grad_scale = step_tensor(b, "step.grad_scale", DType::kF32, Shape{3});

  const int forward = b.add_segment("chunk0.forward", SegmentKind::kForward, 0);
  ChunkBuilder(b, layout, layout.stages[static_cast<size_t>(rank_class.pp)]).forward();
  const int backward = b.add_segment("chunk0.backward", SegmentKind::kBackward, 0);
  Autodiff(b).run(forward, {});

  const std::vector<Bucket> buckets = bucket_weights(b, layout);
  const int sync = b.add_segment("grad_sync", SegmentKind::kGradSync, 0);
  build_grad_sync(b, layout, buckets);
  const int optimizer = b.add_segment("optimizer", SegmentKind::kOptimizer, 0);
  build_optimizer(b, layout, buckets);

  program.schedule = one_f_one_b(rank_class.pp, layout.pp, layout.micro_batches, forward, backward);
  program.schedule.push_back({sync, 0});
  program.schedule.push_back({optimizer, 0});
  finish_program(program);
  return program;
}

}  // namespace mbb::trainer
