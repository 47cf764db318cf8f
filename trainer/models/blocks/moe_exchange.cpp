// Experts on other ranks: each rank routes its own tokens and sends them, by all-to-all, to the expert-parallel rank
// that has their expert; expert tensor parallel ranks gather what each of them received, compute partial sums, and
// reduce-scatter them back to the rank that received the rows.
//
// Buffers are static (DESIGN, decision 10). `padded`: a slot of fixed rows for every peer, of which peers learn by
// counts how many are filled. `counts`: rows lie packed, and only those that are there move.
//
// Each source's rows for an expert are a piece of their own: every expert's rows are put together once before its
// products, and its results go back to the pieces.
//
// Which tokens are over an expert's capacity is a matter of the whole micro-batch. Where TP ranks hold parts of it they
// exchange choices and weights, drop what one rank would drop, and send the rest as if nothing were ever dropped: an
// expert's tokens may all lie on one of them, so that no slot of a rank's own part of the capacity would do.
#include <cmath>

#include "trainer/models/blocks/moe.h"

namespace mbb::trainer {
namespace {

struct Plan {
  DispatchAttrs dispatch;
  ReceiveAttrs receive;
  bool padded = true;
  int64_t pairs = 0;  // (token, expert) pairs of this rank: rows it sends, and at balanced load receives
};

bool drops_together(const BlockBuilder& k) {
  return k.layout().tp > 1 && k.layout().config.parallel.moe_expert_capacity_factor > 0;
}

// Rows that come together on one peer from one source at most.
int64_t rows_of_slot(const BlockBuilder& k, int64_t tokens) {
  const MoeShape& moe = k.model().moe;
  const double bound = k.layout().config.parallel.moe_dropless_bound;
  int64_t worst = tokens * std::min(moe.top_k, moe.num_experts / k.layout().ep);
  if (drops_together(k) && k.layout().ep > 1)
    worst = std::min(worst, dispatch_attrs(k, tokens * k.layout().tp).rows / k.layout().ep);
  if (bound == 0) return worst;
  const double balanced = static_cast<double>(tokens * moe.top_k) / k.layout().ep;
  return std::min(worst, static_cast<int64_t>(std::ceil(bound * balanced)));
}

Plan plan_of(const BlockBuilder& k, int64_t tokens) {
  const Layout& l = k.layout();
  Plan plan;
  plan.dispatch = dispatch_attrs(k, tokens);
  if (drops_together(k)) plan.dispatch.capacity = 0;
  plan.pairs = tokens * k.model().moe.top_k;
  plan.padded = l.config.parallel.moe_exchange == MoeExchange::kPadded;
  const int64_t slot = plan.dispatch.capacity > 0 ? plan.dispatch.rows / l.ep : rows_of_slot(k, tokens);
  plan.receive.members = l.etp;
  plan.receive.experts = k.model().moe.num_experts / l.ep;
  plan.receive.member_rows = slot * l.ep;
  plan.receive.capacity = plan.dispatch.capacity;
  if (plan.padded) {
    plan.receive.slot_rows = slot;
    plan.dispatch.peers = l.ep;
    plan.dispatch.rows = slot * l.ep;
  }
  return plan;
}

class Exchange {
 public:
  Exchange(BlockBuilder& k, std::string path, Plan plan)
      : k_(k), b_(k.builder()), path_(std::move(path)), plan_(plan) {}

  // Tells every peer how many rows go to each of its experts; `segments` is what the dispatch plan wrote.
  void tell_counts(TensorId segments) {
    const int64_t ep = k_.layout().ep;
    received_ = sent_ = b_.emit1(kSegmentCounts, path_ + ".counts.fwd", {segments}, NoAttrs{});
    if (ep > 1)
      received_ = b_.emit1(kAllToAll, path_ + ".counts.all_to_all.fwd", {sent_}, comm(GroupKind::kEp, ep, 0), on());
  }

  // Which rows of what arrives belong to which expert.
  ExpertRows rows_of_experts() {
    const int64_t etp = k_.layout().etp;
    TensorId counts = received_;
    if (etp > 1)
      counts = b_.emit1(kAllGather, path_ + ".counts.all_gather.fwd", {counts}, comm(GroupKind::kEtp, etp, 0), on());
    const TensorId pieces = b_.emit1(kReceivePlan, path_ + ".receive_plan.fwd", {counts}, plan_.receive);
    return {pieces, plan_.pairs * etp};
  }

  TensorId dispatch(TensorId rows) {
    const std::string path = path_ + ".dispatch";
    if (!k_.layout().config.parallel.moe_fp8_dispatch) return send(path, rows);
    const auto q = b_.emit(kQuantizeTokens, path + ".quantize.fwd", {rows}, QuantizeAttrs{DType::kE4M3});
    const TensorId values = send(path, q[0]);
    const TensorId scales = send(path + ".scales", q[1]);
    return b_.emit1(kDequantizeTokens, path + ".dequantize.fwd", {values, scales}, QuantizeAttrs{k_.layout().compute},
                    {.out_path = path + ".out"});
  }

  TensorId give_back(TensorId done) {
    if (k_.layout().etp > 1)
      done = b_.emit1(kReduceScatter, path_ + ".combine.reduce_scatter.fwd", {done},
                      comm(GroupKind::kEtp, k_.layout().etp, plan_.pairs), on());
    return exchange(path_ + ".combine", done, received_, sent_, plan_.dispatch.rows);
  }

 private:
  TensorId send(const std::string& path, TensorId rows) {
    const TensorId x = exchange(path, rows, sent_, received_, plan_.receive.member_rows);
    if (k_.layout().etp == 1) return x;
    return b_.emit1(kAllGather, path + ".all_gather.fwd", {x}, comm(GroupKind::kEtp, k_.layout().etp, plan_.pairs),
                    on(Category::kComm));
  }

  TensorId exchange(const std::string& path, TensorId x, TensorId sent, TensorId received, int64_t rows) {
    if (k_.layout().ep == 1) return x;
    CommAttrs attrs = comm(GroupKind::kEp, k_.layout().ep, plan_.pairs);
    if (plan_.padded) return b_.emit1(kAllToAll, path + ".all_to_all.fwd", {x}, attrs, on());
    attrs.message = Shape{rows, b_.tensor(x).shape.cols()};
    return b_.emit1(kAllToAllRows, path + ".all_to_all.fwd", {x, sent, received}, attrs, on());
  }

  static CommAttrs comm(GroupKind group, int64_t size, int64_t useful_rows) {
    return {.group = group, .group_size = static_cast<int>(size), .useful_rows = useful_rows};
  }
  static EmitOptions on(Category category = Category::kActivation) {
    return {.stream = Stream::kEp, .category = category};
  }

  BlockBuilder& k_;
  Builder& b_;
  std::string path_;
  Plan plan_;
  TensorId sent_ = kNoTensor;      // rows for each expert of each peer
  TensorId received_ = kNoTensor;  // rows of each source for each own expert
};

// The experts of this rank's tokens, -1 where the micro-batch's capacity has no place for the pair.
TensorId kept_experts(BlockBuilder& k, const std::string& path, const Routing& mine, int64_t tokens) {
  Builder& b = k.builder();
  const auto of_all = [&](const char* what, TensorId part) {
    return b.emit1(kAllGather, path + what + ".all_gather.fwd", {part}, k.tp_comm(),
                   {.stream = Stream::kTp, .category = Category::kComm});
  };
  const std::vector<TensorId> all{of_all(".experts", mine.experts), of_all(".weights", mine.weights)};
  const auto plan = b.emit(kDispatchPlan, path + ".plan.fwd", all, dispatch_attrs(k, tokens * k.layout().tp));
  return b.emit1(kKeptExperts, path + ".fwd", {mine.experts, plan[0]}, NoAttrs{});
}

TensorId feed_forward(BlockBuilder& k, const std::string& path, TensorId arrived, const ExpertRows& rows) {
  const std::string experts = path + ".experts";
  const Layout& l = k.layout();
  if (l.ep * l.etp == 1) return expert_feed_forward(k, experts, arrived, rows);
  Builder& b = k.builder();
  const DispatchAttrs attrs{.experts = k.model().moe.num_experts / l.ep, .rows = b.tensor(arrived).shape[0]};
  const auto merged = b.emit(kMergePieces, path + ".pieces.fwd", {rows.segments}, attrs);
  const TensorId sorted = b.emit1(kPermute, path + ".sort.fwd", {arrived, merged[0]}, attrs);
  const TensorId done = expert_feed_forward(k, experts, sorted, {merged[1], rows.useful});
  return b.emit1(kUnpermute, path + ".unsort.fwd", {done, merged[0]}, attrs);
}

}  // namespace

TensorId exchanged_experts(BlockBuilder& k, const std::string& path, TensorId x) {
  Builder& b = k.builder();
  const Routing routing = route(k, path + ".router", x);
  const int64_t tokens = b.tensor(x).shape.rows();
  const Plan plan = plan_of(k, tokens);
  const TensorId kept = drops_together(k) ? kept_experts(k, path + ".drop", routing, tokens) : routing.experts;
  const auto own = b.emit(kDispatchPlan, path + ".plan.fwd", {kept, routing.weights}, plan.dispatch);
  Exchange exchange(k, path, plan);
  const TensorId sent = b.emit1(kPermute, path + ".permute.fwd", {x, own[0]}, plan.dispatch);
  exchange.tell_counts(own[1]);
  const TensorId arrived = exchange.dispatch(sent);
  const TensorId done = feed_forward(k, path, arrived, exchange.rows_of_experts());
  return combine_rows(k, path, exchange.give_back(done), own[0], routing.weights, plan.dispatch, x);
}

}  // namespace mbb::trainer
