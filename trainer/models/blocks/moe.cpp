// Mixture of experts: router, dispatch into expert buffers, grouped feed-forward, weighted combination, shared expert.
//
// Tokens are gathered over TP first, every rank routes all of them, and experts are cut over TP along their inner
// width: what a rank combines is a partial sum, and so are the gradients of router weights.
#include <cmath>

#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {
namespace {

struct Routing {
  TensorId logits, experts, weights;
};

RouterAttrs router_attrs(const BlockBuilder& k) {
  const MoeShape& moe = k.model().moe;
  RouterAttrs a;
  a.top_k = static_cast<int>(moe.top_k);
  a.sigmoid = moe.score == RouterScore::kSigmoid;
  a.top_k_first = moe.order == RouterOrder::kTopKThenScore;
  a.normalize = moe.normalize_top_k;
  a.scaling = moe.routed_scaling;
  a.groups = static_cast<int>(moe.num_groups);
  a.top_k_groups = static_cast<int>(moe.top_k_groups);
  a.biased = moe.bias_correction;
  a.balanced = k.layout().config.parallel.moe_router_force_load_balancing;
  return a;
}

// Trained weights of the router, of which each TP rank sees a part of the gradient.
TensorId router_logits(BlockBuilder& k, const std::string& path, TensorId x) {
  const MoeShape& moe = k.model().moe;
  const TensorId w = k.weight(path + ".weight", Shape{moe.num_experts, k.model().hidden_size},
                              {.init = k.normal(), .partial_over_tp = true});
  const TensorId logits = k.builder().emit1(kRouterGemm, path + ".fwd", {x, w}, GemmAttrs{false, true, false, true},
                                            {.role = Role::kFprop, .out_path = path + ".out"});
  return moe.router_bias ? k.bias(path, logits, {.partial_over_tp = true}) : logits;
}

// Load of the step and the bias that follows from it; the optimizer segment writes the bias once a step.
TensorId selection_bias(BlockBuilder& k, const std::string& path) {
  Tensor t;
  t.path = path + ".expert_bias";
  t.dtype = DType::kF32;
  t.shape = Shape{k.model().moe.num_experts};
  t.category = Category::kStep;
  t.scope = Scope::kPersistent;
  return k.builder().declare(std::move(t));
}

void count_load(BlockBuilder& k, const std::string& path, TensorId experts, TensorId bias) {
  const int64_t count = k.model().moe.num_experts;
  const TensorId load = k.step_sum(path + ".expert_load", DType::kF32, Shape{count});
  k.builder().emit(kExpertLoad, path + ".load.fwd", {experts}, CountAttrs{count, false},
                   {.when = When::kFirst, .out = {load}});
  k.builder().emit(kExpertLoad, path + ".load.fwd", {experts, load}, CountAttrs{count, true},
                   {.when = When::kNotFirst, .out = {load}});
  k.expert_states().push_back({path, load, bias, k.model().moe.bias_update_rate});
}

void router_loss(BlockBuilder& k, const std::string& path, const Routing& routing) {
  const MoeShape& moe = k.model().moe;
  MoeLossAttrs a;
  a.aux = moe.aux_loss == AuxLoss::kNone ? 0.0 : moe.aux_loss_coefficient;
  a.z = moe.z_loss_coefficient;
  if (a.aux == 0 && a.z == 0) return;
  a.sigmoid = moe.score == RouterScore::kSigmoid;
  a.sequences = k.layout().micro_batch;
  a.per_sequence = moe.aux_loss == AuxLoss::kSequence;
  a.gradient = 1.0 / k.layout().tp;
  k.builder().emit(kRouterLoss, path + ".loss.fwd", {routing.logits, routing.experts}, a);
}

Routing route(BlockBuilder& k, const std::string& path, TensorId x) {
  Routing r;
  r.logits = router_logits(k, path, x);
  const RouterAttrs attrs = router_attrs(k);
  std::vector<TensorId> in{r.logits};
  const TensorId bias = attrs.biased ? selection_bias(k, path) : kNoTensor;
  if (attrs.biased) in.push_back(bias);
  r.experts = k.builder().emit1(kRouterSelect, path + ".select.fwd", in, attrs);
  r.weights = k.builder().emit1(kRouterWeights, path + ".weights.fwd", {r.logits, r.experts}, attrs);
  if (attrs.biased) count_load(k, path, r.experts, bias);
  router_loss(k, path, r);
  return r;
}

DispatchAttrs dispatch_attrs(const BlockBuilder& k, int64_t tokens) {
  const MoeShape& moe = k.model().moe;
  const ParallelConfig& p = k.layout().config.parallel;
  DispatchAttrs a;
  a.experts = moe.num_experts;
  a.by_position = p.moe_token_drop_policy == TokenDrop::kPosition;
  a.rows = tokens * moe.top_k;
  if (p.moe_expert_capacity_factor > 0) {
    const double balanced = static_cast<double>(tokens * moe.top_k) / static_cast<double>(moe.num_experts);
    a.capacity = static_cast<int64_t>(std::ceil(balanced * p.moe_expert_capacity_factor));
    a.rows = a.capacity * a.experts;
  }
  return a;
}

struct Buffer {
  TensorId rows, segments;
  int64_t useful_rows;
};

TensorId grouped_linear(BlockBuilder& k, const std::string& path, TensorId x, TensorId w, const Buffer& buffer) {
  return k.builder().emit1(kGroupedGemm, path + ".fwd", {x, w, buffer.segments},
                           GroupedGemmAttrs{buffer.useful_rows, false},
                           {.role = Role::kFprop, .out_path = path + ".out"});
}

TensorId grouped_bias(BlockBuilder& k, const std::string& path, TensorId x, const Buffer& buffer, WeightOptions options,
                      float scale) {
  const int64_t local = k.builder().tensor(x).shape.cols();
  const Shape full{k.model().moe.num_experts, options.cuts.empty() ? local : local * k.layout().tp};
  options.decay = false;
  options.init = {Init::Kind::kZeros, 0};
  const TensorId b = k.weight(path + ".bias", full, std::move(options));
  return k.builder().emit1(kGroupedBias, path + ".bias.fwd", {x, b, buffer.segments}, BiasAttrs{false, scale},
                           {.out_path = path + ".bias.out"});
}

TensorId experts(BlockBuilder& k, const std::string& path, TensorId x, const Buffer& buffer) {
  const ModelShape& m = k.model();
  const int64_t f = m.moe.expert_ffn_hidden_size;
  const std::vector<int64_t> parts = m.gated() ? std::vector<int64_t>{f, f} : std::vector<int64_t>{f};
  const Cut inner{1, Axis::kTp, parts};
  const auto out = static_cast<int64_t>(parts.size()) * f;
  const TensorId w1 = k.weight(path + ".fc1.weight", Shape{m.moe.num_experts, out, m.hidden_size},
                               {.cuts = {inner}, .init = k.normal()});
  const TensorId w2 = k.weight(path + ".fc2.weight", Shape{m.moe.num_experts, m.hidden_size, f},
                               {.cuts = {{2, Axis::kTp, {}}}, .init = k.scaled_normal()});
  TensorId y = grouped_linear(k, path + ".fc1", x, w1, buffer);
  if (m.mlp_bias) y = grouped_bias(k, path + ".fc1", y, buffer, {.cuts = {inner}}, 1.0F);
  y = grouped_linear(k, path + ".fc2", k.activation(path + ".act", y), w2, buffer);
  // Each rank adds its share of the bias to its partial sum.
  if (m.mlp_bias)
    y = grouped_bias(k, path + ".fc2", y, buffer, {.partial_over_tp = true}, 1.0F / static_cast<float>(k.layout().tp));
  return y;
}

// Like mlp_block, before its sum over TP.
TensorId shared_expert(BlockBuilder& k, const std::string& path, TensorId x) {
  const ModelShape& m = k.model();
  const int64_t f = m.moe.shared_ffn_hidden_size;
  const TensorId up =
      k.column_linear(path + ".fc1", x, m.gated() ? std::vector<int64_t>{f, f} : std::vector<int64_t>{f}, false);
  const TensorId w2 = k.weight(path + ".fc2.weight", Shape{m.hidden_size, f},
                               {.cuts = {{1, Axis::kTp, {}}}, .init = k.scaled_normal()});
  return k.linear(path + ".fc2", k.activation(path + ".act", up), w2);
}

}  // namespace

TensorId moe_block(BlockBuilder& k, const std::string& path, TensorId x) {
  Builder& b = k.builder();
  x = k.gather(path + ".dispatch", x);
  const Routing routing = route(k, path + ".router", x);
  const DispatchAttrs attrs = dispatch_attrs(k, b.tensor(x).shape.rows());
  const auto plan = b.emit(kDispatchPlan, path + ".plan.fwd", {routing.experts, routing.weights}, attrs);
  const Buffer buffer{plan[0], plan[1], b.tensor(routing.experts).shape.elements()};
  const TensorId sent = b.emit1(kPermute, path + ".permute.fwd", {x, buffer.rows}, attrs);
  const TensorId done = experts(k, path + ".experts", sent, buffer);
  Tensor combined = b.tensor(x);
  combined.path = path + ".combine.out";
  combined.category = Category::kActivation;
  TensorId y = b.emit1(kCombine, path + ".combine.fwd", {done, buffer.rows, routing.weights}, attrs,
                       {.out = {b.declare(std::move(combined))}});
  if (k.model().moe.shared_ffn_hidden_size > 0)
    y = b.emit1(kAdd, path + ".shared.add.fwd", {y, shared_expert(k, path + ".shared", x)}, NoAttrs{},
                {.out_path = path + ".shared.add.out"});
  return k.scatter(path + ".combine", y);
}

}  // namespace mbb::trainer
