// The router of a mixture of experts: logits, choice, weights, balancing losses, load.
//
// Padding goes to no expert: it takes no place of an expert's capacity, has no part in the fractions, probabilities and
// z-loss that balance experts nor in the load that steers them. So a batch is worth the same however it is padded.
// (Megatron-Core leaves padding out of the same statistics, where it is given a mask, and sends it to experts.)
#include "trainer/models/blocks/moe.h"

namespace mbb::trainer {
namespace {

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
  a.positions = k.positions();
  a.sequence_sharded = k.layout().exchanges_tokens() && k.layout().sequence_parallel;
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

// Tokens of the micro-batch that each expert got, over all TP and CP ranks: balance is no rank's own affair.
TensorId count_tokens(BlockBuilder& k, const std::string& path, TensorId experts) {
  const MoeShape& moe = k.model().moe;
  const CountAttrs attrs{.experts = moe.num_experts,
                         .sets = moe.aux_loss == AuxLoss::kSequence ? k.layout().sequences_of_micro_batch() : 1};
  std::vector<TensorId> in{experts};
  if (const TensorId sequences = k.sequences(); attrs.sets > 1 && sequences != kNoTensor) in.push_back(sequences);
  TensorId counts = k.builder().emit1(kExpertCounts, path + ".counts.fwd", in, attrs);
  if (k.layout().exchanges_tokens() && k.layout().tp > 1)
    counts =
        k.builder().emit1(kAllReduce, path + ".counts.all_reduce.fwd", {counts}, k.tp_comm(), {.stream = Stream::kTp});
  if (k.layout().cp == 1) return counts;
  return k.builder().emit1(kAllReduce, path + ".counts.context.all_reduce.fwd", {counts},
                           CommAttrs{.group = GroupKind::kCp, .group_size = k.layout().cp}, {.stream = Stream::kCp});
}

void count_load(BlockBuilder& k, const std::string& path, TensorId counts, TensorId bias) {
  const CountAttrs first{.experts = k.model().moe.num_experts};
  CountAttrs later = first;
  later.accumulate = true;
  const TensorId load = k.step_sum(path + ".expert_load", DType::kF32, Shape{first.experts});
  k.builder().emit(kExpertLoad, path + ".load.fwd", {counts}, first, {.when = When::kFirst, .out = {load}});
  k.builder().emit(kExpertLoad, path + ".load.fwd", {counts, load}, later, {.when = When::kNotFirst, .out = {load}});
  k.expert_states().push_back({path, load, bias, k.model().moe.bias_update_rate});
}

// Choices that the host writes, or reads when the step is over.
TensorId recorded_choices(BlockBuilder& k, const std::string& path, int64_t tokens, const RouterAttrs& attrs) {
  Tensor t;
  t.path = path + ".choices";
  t.dtype = DType::kI32;
  t.shape = Shape{tokens, attrs.top_k};
  t.category = Category::kInput;
  t.scope = Scope::kMicroBatch;
  const TensorId experts = k.builder().declare(std::move(t));
  k.builder().program().ports.routing.push_back({path, experts, attrs.sequence_sharded});
  return experts;
}

// `in`: logits [, selection bias] [, sequences].
Routing choose(BlockBuilder& k, const std::string& path, const std::vector<TensorId>& in, const RouterAttrs& attrs) {
  Builder& b = k.builder();
  const bool replays = k.layout().replays_routing;
  const TensorId kept = replays || k.layout().records_routing
                            ? recorded_choices(k, path, b.tensor(in[0]).shape.rows(), attrs)
                            : kNoTensor;
  if (k.layout().config.parallel.moe_router_fusion && !replays) {
    const auto out = b.emit(kRouter, path + ".choose.fwd", in, attrs, {.out = {kept, kNoTensor}});
    return {out[0], out[1]};
  }
  const TensorId experts = replays ? kept : b.emit(kRouterSelect, path + ".select.fwd", in, attrs, {.out = {kept}})[0];
  return {experts, b.emit1(kRouterWeights, path + ".weights.fwd", {in[0], experts}, attrs)};
}

MoeLossAttrs loss_attrs(const BlockBuilder& k) {
  const MoeShape& moe = k.model().moe;
  MoeLossAttrs a;
  a.aux = moe.aux_loss == AuxLoss::kNone ? 0.0 : moe.aux_loss_coefficient;
  a.z = moe.z_loss_coefficient;
  a.sigmoid = moe.score == RouterScore::kSigmoid;
  // Ranks that gathered the tokens compute the same loss and add up their gradients.
  a.gradient = k.layout().exchanges_tokens() ? 1.0 : 1.0 / k.layout().tp;
  return a;
}

}  // namespace

Routing route(BlockBuilder& k, const std::string& path, TensorId x) {
  const RouterAttrs attrs = router_attrs(k);
  const TensorId logits = router_logits(k, path, x);
  std::vector<TensorId> in{logits};
  const TensorId bias = attrs.biased ? selection_bias(k, path) : kNoTensor;
  if (attrs.biased) in.push_back(bias);
  const TensorId sequences = k.sequences();
  if (sequences != kNoTensor) in.push_back(sequences);
  const Routing r = choose(k, path, in, attrs);
  const MoeLossAttrs loss = loss_attrs(k);
  const bool has_loss = loss.aux != 0 || loss.z != 0;
  if (!attrs.biased && !has_loss) return r;
  const TensorId counts = count_tokens(k, path, r.experts);
  if (attrs.biased) count_load(k, path, counts, bias);
  if (!has_loss) return r;
  in = {logits, counts};
  if (sequences != kNoTensor) in.push_back(sequences);
  k.report_router_losses(path + ".loss_sum.fwd", k.builder().emit1(kRouterLoss, path + ".loss.fwd", in, loss));
  return r;
}

}  // namespace mbb::trainer
