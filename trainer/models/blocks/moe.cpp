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
  return k.builder().emit1(kGroupedBias, path + ".bias.fwd", {x, bias, rows.segments}, GroupedBiasAttrs{.scale = scale},
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
  const TensorId activated = k.activation(path + ".act", up);
  return k.adapted(path + ".fc2", activated, k.linear(path + ".fc2", activated, w2), {{1, Axis::kTp, {}}}, {});
}

// An adapter of its own for each expert, cut as the layer is: `in_cuts` of A's dimension 2, `out_cuts` of B's
// dimension 1. The factor that all members of the expert tensor group hold sees a part of its gradient on each.
TensorId adapted_experts(BlockBuilder& k, const std::string& path, TensorId x, TensorId y, const ExpertRows& rows,
                         Shape layer, const std::vector<Cut>& in_cuts, const std::vector<Cut>& out_cuts) {
  if (!k.adapts(path)) return y;
  const int64_t rank = k.layout().config.memory.lora_rank;
  const auto factor = [&](const char* name, Shape full, const std::vector<Cut>& cuts, Init init, bool partial) {
    std::vector<Cut> all{{0, Axis::kEp, {}}};
    all.insert(all.end(), cuts.begin(), cuts.end());
    return k.weight(path + name, full, {.cuts = all, .init = init, .partial_over_tp = partial, .expert = true});
  };
  const TensorId a = factor(".lora_a.weight", Shape{layer[0], rank, layer[2]}, in_cuts, k.normal(), !out_cuts.empty());
  const TensorId b =
      factor(".lora_b.weight", Shape{layer[0], layer[1], rank}, out_cuts, {Init::Kind::kZeros, 0}, !in_cuts.empty());
  const TensorId low = grouped_linear(k, path + ".lora_a", x, a, rows);
  return k.add_adapter(path, y, grouped_linear(k, path + ".lora_b", low, b, rows));
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
  const Shape up{m.moe.num_experts, out, m.hidden_size}, down{m.moe.num_experts, m.hidden_size, f};
  const Cut narrow{2, Axis::kEtp, {}};
  const TensorId w1 = weight(".fc1.weight", up, {mine, inner}, k.normal());
  const TensorId w2 = weight(".fc2.weight", down, {mine, narrow}, k.scaled_normal());
  TensorId y = grouped_linear(k, path + ".fc1", x, w1, rows);
  y = adapted_experts(k, path + ".fc1", x, y, rows, up, {}, {inner});
  if (m.mlp_bias)
    y = grouped_bias(k, path + ".fc1", y, weight(".fc1.bias", Shape{m.moe.num_experts, out}, {mine, inner}, zeros),
                     rows, 1.0F);
  const TensorId activated = k.activation(path + ".act", y);
  y = grouped_linear(k, path + ".fc2", activated, w2, rows);
  y = adapted_experts(k, path + ".fc2", activated, y, rows, down, {narrow}, {});
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
