// Durations from rates. Shapes of products come from their operands' sizes, so that no op kind is named here.
#include "trainer/execute/simulate/cost_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trainer/ops/message_peers.h"
#include "trainer/program/op_volume.h"

namespace mbb::trainer {
namespace {

constexpr double kNs = 1e9;

bool is_fp8(DType type) {
  return type == DType::kE4M3 || type == DType::kE5M2;
}

// What the attributes say of a product, whichever kind it is.
struct ProductFacts {
  bool accumulate = false;
  bool blocks = false;
  int64_t experts = 0;      // 0: one product
  int64_t useful_rows = 0;  // of all experts
  int sm_margin = 0;
};

ProductFacts product_facts(const OpView& view) {
  ProductFacts facts;
  const Attrs& attrs = view.op.attrs;
  const auto grouped = [&](const GroupedGemmAttrs& a) {
    facts.accumulate = a.accumulate;
    facts.useful_rows = a.useful_rows;
    facts.experts = 1;
    for (const std::vector<TensorId>* list : {&view.op.in, &view.op.out})
      for (const TensorId id : *list)
        if (const Shape& shape = view.program.tensor(id).shape; shape.rank() == 3)
          facts.experts = std::max(facts.experts, shape[0]);
    if (a.only >= 0) facts.experts = 1;
  };
  if (const auto* plain = std::get_if<GemmAttrs>(&attrs)) facts = {plain->accumulate, false, 0, 0, plain->sm_margin};
  if (const auto* rows = std::get_if<GemmRowsAttrs>(&attrs)) facts.sm_margin = rows->gemm.sm_margin;
  if (const auto* rows = std::get_if<ScaledRowsAttrs>(&attrs)) facts.sm_margin = rows->sm_margin;
  if (const auto* scaled = std::get_if<ScaledGemmAttrs>(&attrs)) facts.accumulate = scaled->accumulate;
  if (const auto* blocks = std::get_if<GemmBlocksAttrs>(&attrs)) facts = {blocks->accumulate, true, 0, 0, 0};
  if (const auto* a = std::get_if<GroupedGemmAttrs>(&attrs)) grouped(*a);
  if (const auto* a = std::get_if<GroupedQuantizedAttrs>(&attrs)) {
    grouped(a->grouped);
    facts.experts = a->local_experts;
    facts.blocks = a->block > 0;
  }
  return facts;
}

// Rows, columns and inner dimension from FLOPs = 2·m·n·k and two of the operands, m·k and n·k elements.
struct ProductShape {
  double m = 0, n = 0, k = 0;
};

ProductShape product_shape(const OpView& view, const ProductFacts& facts, double flops) {
  if (facts.experts > 0) {
    const double rows = std::max(1.0, static_cast<double>(facts.useful_rows) / static_cast<double>(facts.experts));
    const double side = std::sqrt(flops / 2 / std::max(1.0, static_cast<double>(facts.useful_rows)));
    return view.op.role == Role::kWgrad ? ProductShape{side, side, rows} : ProductShape{rows, side, side};
  }
  const double half = flops / 2;
  const auto a = static_cast<double>(view.in(0).shape.elements()), b = static_cast<double>(view.in(1).shape.elements());
  const double k = std::max(1.0, a * b / half);
  const double n = std::max(1.0, b / k);
  return {std::max(1.0, half / n / k), n, k};
}

GemmForm form_of(const Op& op, bool accumulate) {
  if (op.role == Role::kDgrad) return GemmForm::kDgrad;
  if (op.role == Role::kWgrad) return accumulate ? GemmForm::kWgradAccumulate : GemmForm::kWgrad;
  return GemmForm::kFprop;
}

double share_of(const CostTable& table, std::string_view kind) {
  for (const KernelShare& k : table.kernel_shares)
    if (k.kind == kind) return k.share;
  return table.other_share;
}

// Output tiles of 128 x 128, with long inner dimensions cut in parts of 2048: what there is to spread over SMs.
double parallel_share(const ProductShape& s, const ProductFacts& facts, int sms) {
  const double tiles = std::ceil(s.m / 128) * std::ceil(s.n / 128) * std::max(1.0, std::floor(s.k / 2048)) *
                       std::max<double>(1, static_cast<double>(facts.experts));
  return std::min(1.0, tiles / sms);
}

bool balanced_load(const Program& program) {
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (const auto* router = std::get_if<RouterAttrs>(&op.attrs)) return router->balanced;
  return false;
}

// A product of many experts has the rate of one product of all their rows, but that every expert's rows end in a tile
// of their own; and the weight gradients pass device memory besides, which tiles of few rows do not hide.
struct Grouped {
  ProductShape whole;
  double share = 1;  // of that rate
  double gradients_s = 0;
};

Grouped grouped_product(const CostTable& table, const OpView& view, const ProductFacts& facts, ProductShape each,
                        bool balanced) {
  const bool wgrad = view.op.role == Role::kWgrad;
  const auto experts = static_cast<double>(facts.experts);
  Grouped g{each};
  double& rows = wgrad ? g.whole.k : g.whole.m;
  if (!wgrad) g.share = rows / (balanced ? 128 * std::ceil(rows / 128) : rows + table.uneven_rows);
  rows *= experts;
  if (!wgrad) return g;
  if (is_fp8(view.in(0).dtype)) g.share = facts.blocks ? table.grouped_wgrad_blocks : table.grouped_wgrad_fp8;
  const DType type = view.program.tensor(view.op.out[0]).dtype;
  const double passes = facts.accumulate ? 2 : 1;
  g.gradients_s = experts * each.m * each.n * static_cast<double>(size_of(type)) * passes / (table.copy_gb_s * 1e9);
  return g;
}

OpCost product_cost(const CostTable& table, const OpView& view, double flops, bool balanced) {
  const ProductFacts facts = product_facts(view);
  const ProductShape shape = product_shape(view, facts, flops);
  const bool fp8 = is_fp8(view.in(0).dtype);
  const GemmPoints& points = fp8 ? table.fp8 : table.bf16;
  const Grouped g = facts.experts > 1 ? grouped_product(table, view, facts, shape, balanced) : Grouped{shape};
  double rate =
      gemm_tflops(points[static_cast<size_t>(form_of(view.op, facts.accumulate))], g.whole.m, g.whole.n, g.whole.k);
  rate *= parallel_share(shape, facts, table.sms) * g.share;
  if (facts.blocks) rate *= table.blocks_rate;
  if (facts.sm_margin > 0) rate *= 1 - std::min(0.9, static_cast<double>(facts.sm_margin) / table.sms);
  const double moved = facts.experts > 0 ? 0 : op_bytes(view) / (table.copy_gb_s * 1e9);
  const CostTerm term = facts.experts > 1 ? CostTerm::kGrouped : fp8 ? CostTerm::kGemmFp8 : CostTerm::kGemm;
  return {(std::max(flops / (rate * 1e12), moved) + g.gradients_s) * kNs, term, 1, facts.sm_margin == 0};
}

// Between the head dimensions that were measured: linear in the logarithm.
AttentionRate attention_rate(const std::vector<AttentionRate>& rates, double head_dim) {
  const auto above = std::find_if(rates.begin(), rates.end(), [&](const auto& r) { return r.head_dim >= head_dim; });
  if (above == rates.begin()) return rates.front();
  if (above == rates.end()) return rates.back();
  const AttentionRate &a = *(above - 1), &b = *above;
  const double t = std::log(head_dim / a.head_dim) / std::log(b.head_dim / a.head_dim);
  const auto between = [&](double x, double y) { return x + t * (y - x); };
  return {head_dim, between(a.tflops, b.tflops), between(a.half_keys, b.half_keys), between(a.us, b.us)};
}

OpCost attention_cost(const CostTable& table, const OpView& view, double flops, const AttentionShares::Share& share) {
  const auto& attrs = std::get<AttentionAttrs>(view.op.attrs);
  // A forward op has a gradient rule.
  const bool forward = view.op.kind->grad != nullptr;
  const AttentionRate rate =
      attention_rate(forward ? table.attention_forward : table.attention_backward, attrs.head_dim);
  const auto row = static_cast<double>(view.in(forward ? 0 : 1).shape[0]);
  const double pairs = flops / (rate.tflops * 1e12);
  double busy = pairs * (1 + rate.half_keys / row);
  if (share.keys > 0) {
    const double slow = forward ? table.packed_forward : table.packed_backward;
    busy = std::min(busy, pairs * share.pairs * (1 + rate.half_keys / share.keys) * slow);
  }
  return {(busy + rate.us * 1e-6) * kNs, CostTerm::kAttention};
}

OpCost kernel_cost(const CostTable& table, const OpView& view, double flops) {
  const double moved = op_bytes(view) / (table.copy_gb_s * 1e9 * share_of(table, view.op.kind->name));
  return {std::max(moved, flops / (table.other_tflops * 1e12)) * kNs, CostTerm::kMemory};
}

double bus_gb_s(const BusBandwidth& bus, int members) {
  return members <= 2 ? bus.pair : bus.many;
}

OpCost collective_cost(const CostTable& table, const CommVolume& volume, const GroupPlace& place,
                       const CommAttrs& attrs) {
  if (place.members <= 1) return {0, CostTerm::kNvlink};
  const int sms = attrs.copy_engines ? 0 : attrs.num_sm;
  const BusBandwidth* bus = &table.all_gather;
  if (volume.op == CommOp::kReduceScatter) bus = &table.reduce_scatter;
  if (volume.op == CommOp::kAllReduce) bus = &table.all_reduce;
  const bool all_to_all = volume.op == CommOp::kAllToAll || volume.op == CommOp::kAllToAllV;
  if (all_to_all) bus = &table.all_to_all;
  const bool message = volume.op == CommOp::kSend || volume.op == CommOp::kRecv;
  if (message) bus = &table.point_to_point;
  double link = bus_gb_s(*bus, place.in_domain) * 1e9;
  if (sms > 0 && bus->cta > 0) link = std::min(link, sms * bus->cta * 1e9);
  const double slows = attrs.copy_engines ? 1 : bus->beside;
  const auto wire = static_cast<double>(volume.wire_bytes);
  if (place.in_domain >= place.members) return {(wire / link + table.nvlink_us * 1e-6) * kNs, CostTerm::kNvlink, slows};
  const double nic = table.nic_gb_s * 1e9;
  const double latency = (table.network_us + table.hop_us * place.members) * 1e-6;
  if (message) return {(wire / nic + table.network_us * 1e-6) * kNs, CostTerm::kNetwork, slows};
  if (all_to_all) {
    const double out = static_cast<double>(place.members - place.in_domain) / (place.members - 1);
    return {(std::max(wire * out / nic, wire * (1 - out) / link) + latency) * kNs, CostTerm::kNetwork, slows};
  }
  // A ring enters and leaves a domain once for each member there, over that member's own port.
  const double ring = std::min(bus->many * 1e9, nic * place.in_domain);
  return {(wire / ring + latency) * kNs, CostTerm::kNetwork, slows};
}

class Places {
 public:
  Places(const Mesh& mesh, int rank, int domain) : mesh_(mesh), rank_(rank), domain_(domain) {}

  GroupPlace of(const Op& op) {
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    if (sends(op) || receives(op)) return message(attrs, receives(op));
    const auto found = places_.find(attrs.group);
    if (found != places_.end()) return found->second;
    GroupPlace place{0, 0};
    for (const int member : mesh_.group(attrs.group, rank_)) {
      ++place.members;
      if (member / domain_ == rank_ / domain_) ++place.in_domain;
    }
    return places_[attrs.group] = place;
  }

 private:
  GroupPlace message(const CommAttrs& attrs, bool receiving) const {
    const std::vector<int> peers = message_peers(mesh_, attrs, receiving, rank_);
    if (peers.empty()) return {1, 1};
    return {2, peers.front() / domain_ == rank_ / domain_ ? 2 : 1};
  }

  const Mesh& mesh_;
  int rank_, domain_;
  std::map<GroupKind, GroupPlace> places_;
};

Status check_types(const CostTable& table, const OpView& view) {
  if (!view.op.kind->model_flops || view.op.in.empty()) return {};
  const DType type = view.in(0).dtype;
  const bool fp8 = is_fp8(type);
  if ((type == DType::kBf16 && !table.bf16[0].empty()) || (fp8 && !table.fp8[0].empty())) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("{} has no rates for products of {} ({})", table.hardware, name(type), view.op.path),
              type == DType::kF32 ? "give precision.recipe = bf16 or one of the FP8 recipes, and an attention_backend "
                                    "other than unfused, whose core computes in fp32"
                                  : "give precision.recipe = bf16 or one of the FP8 recipes");
}

}  // namespace

const char* name(CostTerm term) {
  constexpr const char* kNames[kCostTerms] = {"gemm",   "gemm_fp8", "grouped_gemm", "attention",
                                              "memory", "nvlink",   "network",      "host"};
  return kNames[static_cast<size_t>(term)];
}

double gemm_tflops(std::span<const GemmPoint> points, double m, double n, double k) {
  double weights = 0, rates = 0;
  const auto square = [](double x) { return x * x; };
  for (const GemmPoint& p : points) {
    const double d = square(std::log(m / p.m)) + square(std::log(n / p.n)) + square(std::log(k / p.k));
    const double w = 1 / square(d + 0.02);
    weights += w;
    rates += w * p.tflops;
  }
  return weights > 0 ? rates / weights : 0;
}

namespace {

OpCost cost_of(const CostTable& table, const OpView& view, const GroupPlace& place, AttentionShares& shares,
               bool balanced) {
  OpCost cost;
  if (view.op.kind->communicates) {
    cost = collective_cost(table, comm_volume(view), place, std::get<CommAttrs>(view.op.attrs));
    // What arrives was paid for by its sender.
    if (receives(view.op)) cost.ns = 0;
  } else {
    const bool attention = std::holds_alternative<AttentionAttrs>(view.op.attrs);
    const double flops = attention ? op_flops(view) : op_flops(view, shares);
    if (view.op.kind->model_flops && attention)
      cost = attention_cost(table, view, flops, shares.of(view.op));
    else if (view.op.kind->model_flops && view.op.in.size() >= 2)
      cost = product_cost(table, view, flops, balanced);
    else
      cost = kernel_cost(table, view, flops);
    cost.ns += table.kernel_us * 1e3;
  }
  cost.ns *= table.term(cost.term).factor;
  return cost;
}

}  // namespace

OpCost op_cost(const CostTable& table, const OpView& view, const GroupPlace& place) {
  AttentionShares whole_rows(nullptr);
  return cost_of(table, view, place, whole_rows, balanced_load(view.program));
}

Result<StepCosts> step_costs(const CostTable& table, const Mesh& mesh, std::span<const Program> programs,
                             const RowLengths* rows) {
  StepCosts costs;
  AttentionShares shares(rows);
  for (size_t c = 0; c < programs.size(); ++c) {
    Places places(mesh, mesh.representative(static_cast<int>(c)), table.domain);
    const bool balanced = balanced_load(programs[c]);
    auto& of_class = costs.ops.emplace_back();
    for (const Segment& segment : programs[c].segments) {
      auto& of_segment = of_class.emplace_back();
      of_segment.reserve(segment.ops.size());
      for (const Op& op : segment.ops) {
        const OpView view{programs[c], op};
        MB_TRY(check_types(table, view));
        of_segment.push_back(
            cost_of(table, view, op.kind->communicates ? places.of(op) : GroupPlace{}, shares, balanced));
      }
    }
  }
  return costs;
}

}  // namespace mbb::trainer
