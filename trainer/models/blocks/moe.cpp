// Mixture of experts: router, dispatch into expert buffers, grouped feed-forward, weighted combination, shared expert.
//
// Where experts are cut like everything else over TP, tokens are gathered over TP first, every rank routes all of them,
// and what a rank combines is a partial sum; so are the gradients of router weights. Elsewhere tokens are exchanged
// (moe_exchange.cpp).
#include "trainer/models/blocks/moe.h"

#include <cmath>

namespace mbb::trainer {
namespace {

TensorId grouped_linear(BlockBuilder& k, const std::string& path, TensorId x, TensorId w, const ExpertRows& rows) {
  const int64_t experts = k.model().moe.num_experts / k.layout().ep;
  return k.builder().emit1(kGroupedGemm, path + ".fwd", {x, w, rows.segments},
                           GroupedGemmAttrs{.useful_rows = rows.useful, .experts = experts},
                           {.role = Role::kFprop, .out_path = path + ".out"});
}

TensorId grouped_bias(BlockBuilder& k, const std::string& path, TensorId x, TensorId bias, const ExpertRows& rows,
                      float scale) {
  const GroupedBiasAttrs attrs{.scale = scale, .experts = k.model().moe.num_experts / k.layout().ep};
  return k.builder().emit1(kGroupedBias, path + ".bias.fwd", {x, bias, rows.segments}, attrs,
                           {.out_path = path + ".bias.out"});
}

// Feed-forward of every token, before its sum over TP.
TensorId shared_expert(BlockBuilder& k, const std::string& path, TensorId x) {
  const ModelShape& m = k.model();
  const int64_t f = m.moe.shared_ffn_hidden_size;
  const TensorId up =
      k.column_linear(path + ".fc1", x, m.gated() ? std::vector<int64_t>{f, f} : std::vector<int64_t>{f}, false);
  const TensorId w2 = k.weight(path + ".fc2.weight", Shape{m.hidden_size, f},
                               {.cuts = {{1, Axis::kTp, {}}}, .init = k.scaled_normal()});
  return k.linear(path + ".fc2", k.activation(path + ".act", up), w2);
}

TensorId add_shared(BlockBuilder& k, const std::string& path, TensorId y, TensorId shared) {
  return k.builder().emit1(kAdd, path + ".shared.add.fwd", {y, shared}, NoAttrs{},
                           {.out_path = path + ".shared.add.out"});
}

TensorId gathered_experts(BlockBuilder& k, const std::string& path, TensorId x) {
  Builder& b = k.builder();
  const Routing routing = route(k, path + ".router", x);
  const DispatchAttrs attrs = dispatch_attrs(k, b.tensor(x).shape.rows());
  const auto plan = b.emit(kDispatchPlan, path + ".plan.fwd", {routing.experts, routing.weights}, attrs);
  const TensorId sent = b.emit1(kPermute, path + ".permute.fwd", {x, plan[0]}, attrs);
  const TensorId done =
      expert_feed_forward(k, path + ".experts", sent, {plan[1], b.tensor(routing.experts).shape.elements()});
  return combine_rows(k, path, done, plan[0], routing.weights, attrs, x);
}

}  // namespace

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

TensorId expert_feed_forward(BlockBuilder& k, const std::string& path, TensorId x, const ExpertRows& rows) {
  const ModelShape& m = k.model();
  const int64_t f = m.moe.expert_ffn_hidden_size;
  const std::vector<int64_t> parts = m.gated() ? std::vector<int64_t>{f, f} : std::vector<int64_t>{f};
  const Cut mine{0, Axis::kEp, {}};
  const Cut inner{1, Axis::kEtp, parts};
  const auto out = static_cast<int64_t>(parts.size()) * f;
  const auto weight = [&](const char* name, Shape full, std::vector<Cut> cuts, Init init) {
    return k.weight(path + name, full,
                    {.cuts = std::move(cuts), .init = init, .decay = full.rank() > 2, .expert = true});
  };
  const Init zeros{Init::Kind::kZeros, 0};
  const TensorId w1 = weight(".fc1.weight", Shape{m.moe.num_experts, out, m.hidden_size}, {mine, inner}, k.normal());
  const TensorId w2 =
      weight(".fc2.weight", Shape{m.moe.num_experts, m.hidden_size, f}, {mine, {2, Axis::kEtp, {}}}, k.scaled_normal());
  TensorId y = grouped_linear(k, path + ".fc1", x, w1, rows);
  if (m.mlp_bias)
    y = grouped_bias(k, path + ".fc1", y, weight(".fc1.bias", Shape{m.moe.num_experts, out}, {mine, inner}, zeros),
                     rows, 1.0F);
  y = grouped_linear(k, path + ".fc2", k.activation(path + ".act", y), w2, rows);
  // Each rank adds its share of the bias to its partial sum, and sees the gradient whole.
  if (m.mlp_bias)
    y = grouped_bias(k, path + ".fc2", y, weight(".fc2.bias", Shape{m.moe.num_experts, m.hidden_size}, {mine}, zeros),
                     rows, 1.0F / static_cast<float>(k.layout().etp));
  return y;
}

TensorId combine_rows(BlockBuilder& k, const std::string& path, TensorId done, TensorId rows, TensorId weights,
                      const DispatchAttrs& attrs, TensorId like) {
  Tensor combined = k.builder().tensor(like);
  combined.path = path + ".combine.out";
  combined.category = Category::kActivation;
  Builder& b = k.builder();
  const EmitOptions into{.out = {b.declare(std::move(combined))}};
  if (k.layout().config.parallel.moe_permute_fusion)
    return b.emit1(kCombine, path + ".combine.fwd", {done, rows, weights}, attrs, into);
  const TensorId pairs = b.emit1(kUnpermute, path + ".unpermute.fwd", {done, rows}, attrs);
  return b.emit1(kWeightedSum, path + ".combine.fwd", {pairs, weights}, NoAttrs{}, into);
}

TensorId moe_block(BlockBuilder& k, const std::string& path, TensorId x) {
  const bool shared = k.model().moe.shared_ffn_hidden_size > 0;
  if (k.layout().exchanges_tokens()) {
    const TensorId y = exchanged_experts(k, path, x);
    if (!shared) return y;
    const TensorId partial = shared_expert(k, path + ".shared", k.gather(path + ".shared.fc1", x));
    return add_shared(k, path, y, k.scatter(path + ".shared.fc2", partial));
  }
  x = k.gather(path + ".dispatch", x);
  TensorId y = gathered_experts(k, path, x);
  if (shared) y = add_shared(k, path, y, shared_expert(k, path + ".shared", x));
  return k.scatter(path + ".combine", y);
}

}  // namespace mbb::trainer
