// Weights, linear layers, norms and collectives of blocks.
#include "trainer/models/blocks/block_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "profiler/base/text.h"
#include "trainer/data/rng.h"

namespace mbb::trainer {
namespace {

Pointwise pointwise(Activation activation) {
  switch (activation) {
    case Activation::kGelu: return Pointwise::kGelu;
    case Activation::kGeluTanh: return Pointwise::kGeluTanh;
    case Activation::kRelu: return Pointwise::kRelu;
    case Activation::kSquaredRelu: return Pointwise::kSquaredRelu;
    case Activation::kGeglu: return Pointwise::kGeglu;
    case Activation::kClampedSwiglu: return Pointwise::kClampedSwiglu;
    case Activation::kSwiglu: break;
  }
  MB_CHECK(false, "SwiGLU has an op of its own");
}

}  // namespace

Init BlockBuilder::scaled_normal() const {
  return {Init::Kind::kNormal,
          l_.config.optimizer.init_method_std / std::sqrt(2.0 * static_cast<double>(l_.model.num_layers))};
}

int BlockBuilder::ways(Axis axis) const {
  return axis == Axis::kTp ? l_.tp : l_.mesh.size(axis);
}

TensorId BlockBuilder::weight(const std::string& path, Shape full, WeightOptions options) {
  if (const auto known = weights_.find(path); known != weights_.end()) return known->second;
  Tensor t;
  t.path = path;
  t.dtype = l_.compute;
  t.full_shape = full;
  t.shape = full;
  std::erase_if(options.cuts, [&](const Cut& cut) { return ways(cut.axis) == 1; });
  for (const Cut& cut : options.cuts) t.shape[cut.dim] /= ways(cut.axis);
  t.cuts = std::move(options.cuts);
  t.category = Category::kWeight;
  t.scope = Scope::kPersistent;
  t.init = options.init;
  t.weight_decay = options.decay && full.rank() > 1;
  t.sharing = options.sharing;
  t.expert = options.expert;
  t.partial_over_tp = options.expert ? options.partial_over_tp && ways(Axis::kEtp) > 1
                                     : l_.tp > 1 && t.cuts.empty() && (l_.sequence_parallel || options.partial_over_tp);
  if (frozen(path)) return weights_[path] = b_.declare(std::move(t));
  Tensor grad;
  grad.path = path + ".main_grad";
  grad.dtype = l_.main_grad_type();
  grad.shape = t.shape;
  grad.category = Category::kMainGrad;
  grad.scope = Scope::kStep;
  t.main_grad = b_.declare(std::move(grad));
  return weights_[path] = b_.declare(std::move(t));
}

bool BlockBuilder::frozen(const std::string& path) const {
  const MemoryConfig& m = l_.config.memory;
  if (m.lora_rank > 0) return path.find(".lora_") == std::string::npos;
  if (m.frozen.empty()) return false;
  const std::vector<std::string_view> patterns = split(m.frozen, ',');
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return glob_match(p, path); });
}

bool BlockBuilder::adapts(const std::string& path) const {
  const MemoryConfig& m = l_.config.memory;
  const std::vector<std::string_view> targets = split(m.lora_targets, ',');
  const std::string_view name = std::string_view(path).substr(path.rfind('.') + 1);
  return m.lora_rank > 0 && std::find(targets.begin(), targets.end(), name) != targets.end();
}

TensorId BlockBuilder::add_adapter(const std::string& path, TensorId y, TensorId low) {
  const MemoryConfig& m = l_.config.memory;
  const double scale = m.lora_alpha / static_cast<double>(m.lora_rank);
  const TensorId scaled = b_.emit1(kScaleBy, path + ".lora.scale.fwd", {low}, ScaleByAttrs{scale, scale},
                                   {.out_path = path + ".lora.scale.out"});
  return b_.emit1(kAdd, path + ".lora.add.fwd", {y, scaled}, NoAttrs{}, {.out_path = path + ".lora.out"});
}

TensorId BlockBuilder::adapted(const std::string& path, TensorId x, TensorId y, const std::vector<Cut>& in_cuts,
                               const std::vector<Cut>& out_cuts) {
  if (!adapts(path)) return y;
  const int64_t rank = l_.config.memory.lora_rank;
  // A factor that all TP ranks hold sees on each of them the gradient through that rank's part of the other.
  const int64_t in = b_.tensor(x).shape.cols() * (in_cuts.empty() ? 1 : l_.tp);
  const int64_t out = b_.tensor(y).shape.cols() * (out_cuts.empty() ? 1 : l_.tp);
  const TensorId a = weight(path + ".lora_a.weight", Shape{rank, in},
                            {.cuts = in_cuts, .init = normal(), .partial_over_tp = !out_cuts.empty()});
  const TensorId b = weight(path + ".lora_b.weight", Shape{out, rank},
                            {.cuts = out_cuts, .init = {Init::Kind::kZeros, 0}, .partial_over_tp = !in_cuts.empty()});
  return add_adapter(path, y, linear(path + ".lora_b", linear(path + ".lora_a", x, a), b));
}

Sharing BlockBuilder::shared_by_stages(bool all_stages) const {
  const RankClass& at = b_.program().rank_class;
  Sharing sharing;
  if (l_.pp > 1 && at.role == MeshRole::kDecoder) sharing.group = all_stages ? GroupKind::kPp : GroupKind::kEmbedding;
  sharing.counted = at.pp == 0;
  return sharing;
}

TensorId BlockBuilder::vocabulary_table(const std::string& path) {
  WeightOptions options{.cuts = {{0, Axis::kTp, {}}}, .init = normal()};
  if (path == "embedding.weight") {
    if (l_.model.tied_embeddings || l_.model.num_mtp_layers > 0) options.sharing = shared_by_stages(false);
    const RankClass& at = b_.program().rank_class;
    options.sharing.meshes = l_.has_encoder_mesh() && (at.role == MeshRole::kEncoder || at.pp == 0);
    if (at.role == MeshRole::kEncoder) options.sharing.counted = false;
  }
  return weight(path, Shape{l_.vocab, l_.model.hidden_size}, std::move(options));
}

TensorId BlockBuilder::input(TensorId& port, const std::string& path, Shape shape) {
  if (port != kNoTensor) return port;
  Tensor t;
  t.path = path;
  t.dtype = DType::kI32;
  t.shape = shape;
  t.category = Category::kInput;
  t.scope = Scope::kMicroBatch;
  return port = b_.declare(std::move(t));
}

TensorId BlockBuilder::step_sum(const std::string& path, DType dtype, Shape shape) {
  Tensor t;
  t.path = path;
  t.dtype = dtype;
  t.shape = shape;
  t.category = Category::kStep;
  t.scope = Scope::kStep;
  const TensorId sum = b_.declare(std::move(t));
  b_.program().ports.step_sums.push_back(sum);
  return sum;
}

void BlockBuilder::report_router_losses(const std::string& path, TensorId losses) {
  TensorId& total = b_.program().ports.router_losses;
  const bool first = total == kNoTensor;
  if (first) total = step_sum("step.router_losses", DType::kF64, Shape{2});
  // Ranks that gathered the tokens have the same losses.
  LossSumAttrs attrs{.scale = l_.exchanges_tokens() ? 1.0 : 1.0 / l_.tp};
  if (first) b_.emit(kLossSum, path, {losses}, attrs, {.when = When::kFirst, .out = {total}});
  attrs.accumulate = true;
  b_.emit(kLossSum, path, {losses, total}, attrs, {.when = first ? When::kNotFirst : When::kAlways, .out = {total}});
}

TensorId BlockBuilder::rms_norm(const std::string& path, TensorId x) {
  const TensorId w = weight(path + ".weight", Shape{b_.tensor(x).shape.cols()}, {.init = {Init::Kind::kOnes, 0}});
  return b_.emit(kRmsNorm, path + ".fwd", {x, w}, NormAttrs{static_cast<float>(l_.model.norm_eps)},
                 {.out_path = path + ".out"})[0];
}

TensorId BlockBuilder::norm(const std::string& path, TensorId x) {
  if (l_.model.norm == NormKind::kRms) return rms_norm(path, x);
  const Shape width{b_.tensor(x).shape.cols()};
  const bool one_plus = l_.model.norm == NormKind::kLayerNorm1p;
  const TensorId w = weight(path + ".weight", width, {.init = {one_plus ? Init::Kind::kZeros : Init::Kind::kOnes, 0}});
  const TensorId shift = weight(path + ".bias", width, {.init = {Init::Kind::kZeros, 0}});
  return b_.emit(kLayerNorm, path + ".fwd", {x, w, shift},
                 NormAttrs{static_cast<float>(l_.model.norm_eps), false, one_plus}, {.out_path = path + ".out"})[0];
}

TensorId BlockBuilder::linear(const std::string& path, TensorId x, TensorId w) {
  return b_.emit1(kGemm, path + ".fwd", {x, w}, GemmAttrs{false, true, false},
                  {.role = Role::kFprop, .out_path = path + ".out"});
}

TensorId BlockBuilder::bias(const std::string& path, TensorId x, WeightOptions options) {
  const int64_t local = b_.tensor(x).shape.cols();
  const Shape full{options.cuts.empty() ? local : local * l_.tp};
  options.init = {Init::Kind::kZeros, 0};
  const TensorId w = weight(path + ".bias", full, std::move(options));
  return b_.emit1(kBiasAdd, path + ".bias.fwd", {x, w}, BiasAttrs{}, {.out_path = path + ".bias.out"});
}

TensorId BlockBuilder::column_linear(const std::string& path, TensorId x, std::vector<int64_t> parts, bool with_bias) {
  const int64_t out = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  const Cut cut{0, Axis::kTp, std::move(parts)};
  const TensorId w = weight(path + ".weight", Shape{out, b_.tensor(x).shape.cols()}, {.cuts = {cut}, .init = normal()});
  const TensorId y = adapted(path, x, linear(path, x, w), {}, {cut});
  return with_bias ? bias(path, y, {.cuts = {cut}}) : y;
}

TensorId BlockBuilder::row_linear(const std::string& path, TensorId x, int64_t in_features, bool with_bias) {
  const TensorId w = weight(path + ".weight", Shape{l_.model.hidden_size, in_features},
                            {.cuts = {{1, Axis::kTp, {}}}, .init = scaled_normal()});
  const TensorId y = scatter(path, adapted(path, x, linear(path, x, w), {{1, Axis::kTp, {}}}, {}));
  return with_bias ? bias(path, y, {}) : y;
}

TensorId BlockBuilder::replicated_linear(const std::string& path, TensorId x, int64_t out_features) {
  const TensorId w = weight(path + ".weight", Shape{out_features, b_.tensor(x).shape.cols()}, {.init = normal()});
  return adapted(path, x, linear(path, x, w), {}, {});
}

TensorId BlockBuilder::gather(const std::string& path, TensorId x) {
  if (l_.tp == 1) return x;
  if (!l_.sequence_parallel) return b_.emit1(kGroupIdentity, path + ".copy.fwd", {x}, tp_comm());
  return b_.emit1(kAllGather, path + ".all_gather.fwd", {x}, tp_comm(),
                  {.stream = Stream::kTp, .category = Category::kComm});
}

TensorId BlockBuilder::scatter(const std::string& path, TensorId x) {
  if (l_.tp == 1) return x;
  if (!l_.sequence_parallel)
    return b_.emit1(kAllReduce, path + ".all_reduce.fwd", {x}, tp_comm(), {.stream = Stream::kTp});
  return b_.emit1(kReduceScatter, path + ".reduce_scatter.fwd", {x}, tp_comm(), {.stream = Stream::kTp});
}

TensorId BlockBuilder::activation(const std::string& path, TensorId x) {
  const EmitOptions options{.out_path = path + ".out"};
  if (l_.model.activation == Activation::kSwiglu) return b_.emit1(kSwiglu, path + ".fwd", {x}, NoAttrs{}, options);
  const ActivationAttrs attrs{pointwise(l_.model.activation), static_cast<float>(l_.model.activation_limit),
                              static_cast<float>(l_.model.activation_alpha)};
  return b_.emit1(kActivation, path + ".fwd", {x}, attrs, options);
}

TensorId BlockBuilder::samples() {
  return input(b_.program().ports.samples, "samples", Shape{l_.micro_batch});
}

TensorId BlockBuilder::starts() {
  return input(b_.program().ports.starts, "starts", Shape{l_.sequences_of_row() + 1});
}

TensorId BlockBuilder::encoder_starts() {
  return input(b_.program().ports.encoder_starts, "encoder.starts", Shape{l_.sequences_of_row() + 1});
}

TensorId BlockBuilder::sequences() {
  if (!l_.has_sequences()) return kNoTensor;
  return input(b_.program().ports.sequences, "sequences", Shape{l_.local_sequence(), l_.micro_batch});
}

int64_t BlockBuilder::random_stream(const std::string& path) const {
  return static_cast<int64_t>(rng_stream(static_cast<uint64_t>(l_.config.train.seed), path_hash(path)));
}

TensorId BlockBuilder::dropout(const std::string& path, TensorId x) {
  const double probability = l_.config.train.hidden_dropout;
  if (probability == 0) return x;
  const DropoutAttrs attrs{probability, random_stream(path + ".dropout"), l_.sequence_parallel, positions(),
                           l_.reads_starts() && l_.cp > 1};
  std::vector<TensorId> in{x, samples(), b_.program().ports.step_record};
  if (attrs.packed) in.push_back(encoder_ ? encoder_starts() : starts());
  return b_.emit1(kDropout, path + ".dropout.fwd", in, attrs, {.out_path = path + ".dropout.out"});
}

TensorId BlockBuilder::residual(const std::string& path, TensorId x, TensorId branch) {
  return b_.emit1(kAdd, path + ".fwd", {x, dropout(path, branch)}, NoAttrs{}, {.out_path = path + ".out"});
}

}  // namespace mbb::trainer
