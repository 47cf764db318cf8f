// Finds a collective and its product by their tensors, and writes the steps that overlap them in their place.
#include "trainer/passes/tp_overlap.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "trainer/ops/table.h"
#include "trainer/program/builder.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

using Method = TpOverlapMethod;
using Sites = std::vector<TpOverlapSite>;

const TpOverlapSite* site_named(const Sites& sites, std::string_view name) {
  for (const TpOverlapSite& site : sites)
    if (name == site.name && site.method != Method::kNone) return &site;
  return nullptr;
}

// "layers.3.attn.qkv.fwd" and its role: site "qkv_fprop"; nothing for products that are no site.
const TpOverlapSite* site_of(const Sites& sites, const Op& gemm) {
  for (const auto& [part, in_path] :
       {std::pair{"qkv", ".attn.qkv."}, {"proj", ".attn.proj."}, {"fc1", ".mlp.fc1."}, {"fc2", ".mlp.fc2."}}) {
    if (gemm.path.find(in_path) == std::string::npos) continue;
    const char* product = gemm.role == Role::kFprop ? "fprop" : gemm.role == Role::kDgrad ? "dgrad" : "wgrad";
    return site_named(sites, fmt::format("{}_{}", part, product));
  }
  return nullptr;
}

bool is_tp(const Op& op, const OpKind& kind) {
  if (op.kind != &kind) return false;
  const auto& attrs = std::get<CommAttrs>(op.attrs);
  return attrs.group == GroupKind::kTp && !attrs.own_shard;
}

bool is_product(const Op& op, Role role) {
  return (op.kind == &kGemm || op.kind == &kGemmScaled || op.kind == &kGemmBlocks) && op.role == role;
}

// Quantized products have no such attribute, and their sites no margin (tp_overlap_sites).
void leave_sms(Op& product, int margin) {
  if (auto* attrs = std::get_if<GemmAttrs>(&product.attrs)) attrs->sm_margin = margin;
}

CommAttrs with_sms(CommAttrs attrs, const TpOverlapSite& site) {
  attrs.copy_engines = site.use_ce;
  if (site.use_ce) return attrs;
  attrs.num_sm = site.num_sm;
  attrs.cga_size = site.cga_size;
  return attrs;
}

int margin(const TpOverlapSite& site) {
  return site.set_sm_margin ? site.num_sm : 0;
}

class Overlap {
 public:
  Overlap(Program& program, int segment, int tp, const Sites& sites)
      : program_(program), b_(program), segment_(segment), tp_(tp), sites_(sites) {}

  void run() {
    old_ = std::move(program_.segments[static_cast<size_t>(segment_)].ops);
    program_.segments[static_cast<size_t>(segment_)].ops.clear();
    b_.enter(segment_);
    for (size_t i = 0; i < old_.size(); ++i)
      for (TensorId id : old_[i].in) readers_[id].push_back(i);
    gone_.assign(old_.size(), false);
    for (size_t i = 0; i < old_.size(); ++i) {
      if (gone_[i]) continue;
      if (is_tp(old_[i], kAllGather) && gathered_product(i)) continue;
      if (old_[i].kind == &kGemm && scattered_product(i)) continue;
      if (is_product(old_[i], Role::kDgrad)) bulk_gather(i);
      b_.ops().push_back(old_[i]);
      if (is_product(old_[i], Role::kDgrad)) bulk_scatter(i);
    }
  }

 private:
  const std::vector<size_t>& readers(TensorId id) { return readers_[id]; }
  Op take(size_t i) {
    gone_[i] = true;
    return old_[i];
  }

  // An all-gather whose only use as a left operand is one product: fprop of a column-parallel layer, or dgrad of a
  // row-parallel one, whose wgrad reads the gathered rows too.
  bool gathered_product(size_t at) {
    const TensorId gathered = old_[at].out[0];
    std::optional<size_t> product;
    bool others = false;
    for (size_t reader : readers(gathered)) {
      const Op& op = old_[reader];
      const bool left = op.kind == &kGemm && op.in[0] == gathered;
      if (left && (op.role == Role::kFprop || op.role == Role::kDgrad) && !product)
        product = reader;
      else if (left && op.role == Role::kWgrad)
        others = true;
      else
        return false;
    }
    if (!product) return false;
    const TpOverlapSite* site = site_of(sites_, old_[*product]);
    if (site == nullptr || site->method == Method::kBulk) return false;
    const Op gather = take(at);
    const Op gemm = take(*product);
    const std::vector<TensorId> parts =
        site->method == Method::kRingExchange ? ring_gather(*site, gather, gemm) : split_gather(*site, gather, gemm);
    if (others) put_together(*site, gather, parts);
    return true;
  }

  GemmRowsAttrs blocks_of(const Op& gemm, const TpOverlapSite& site, int64_t rows) const {
    GemmRowsAttrs a{std::get<GemmAttrs>(gemm.attrs)};
    a.gemm.sm_margin = margin(site);
    a.whole_rows = rows * tp_;
    a.blocks = tp_;
    a.rows = a.stride = rows;
    return a;
  }

  void emit_product(const Op& gemm, std::string path, std::vector<TensorId> in, const GemmRowsAttrs& attrs,
                    std::vector<TensorId> out, Category category) {
    b_.emit(kGemmRows, std::move(path), std::move(in), attrs,
            {.role = gemm.role, .when = gemm.when, .category = category, .out = std::move(out)});
  }

  // Into blocks of the whole result, which the first product begins and the others go on with.
  void product_into(const Op& gemm, const std::string& path, TensorId x, const GemmRowsAttrs& attrs, bool begins) {
    std::vector<TensorId> in{x, gemm.in[1]};
    if (!begins) in.push_back(gemm.out[0]);
    emit_product(gemm, path, in, attrs, gemm.out, b_.tensor(gemm.out[0]).category);
  }

  std::vector<TensorId> ring_gather(const TpOverlapSite& site, const Op& gather, const Op& gemm) {
    CommAttrs comm = with_sms(std::get<CommAttrs>(gather.attrs), site);
    GemmRowsAttrs attrs = blocks_of(gemm, site, b_.tensor(gather.in[0]).shape.rows());
    attrs.of_result = true;
    attrs.blocks = 1;
    attrs.ring = tp_;
    std::vector<TensorId> held{gather.in[0]};
    for (int j = 0; j < tp_; ++j) {
      if (j + 1 < tp_)
        held.push_back(b_.emit1(kRingShift, fmt::format("{}.ring{}", gather.path, j + 1), {held.back()}, comm,
                                {.stream = Stream::kTp, .category = Category::kComm}));
      attrs.step = j;
      product_into(gemm, fmt::format("{}.ring{}", gemm.path, j), held[static_cast<size_t>(j)], attrs, j == 0);
    }
    return held;
  }

  std::vector<TensorId> split_gather(const TpOverlapSite& site, const Op& gather, const Op& gemm) {
    const CommAttrs comm = with_sms(std::get<CommAttrs>(gather.attrs), site);
    const Shape local = b_.tensor(gather.in[0]).shape;
    GemmRowsAttrs attrs = blocks_of(gemm, site, local.rows());
    attrs.of_result = true;
    attrs.rows = local.rows() / site.num_splits;
    std::vector<TensorId> parts;
    for (int j = 0; j < site.num_splits; ++j) {
      const std::string path = fmt::format("{}.split{}", gather.path, j);
      parts.push_back(b_.emit1(kAllGather, path, {part_of(gather.in[0], path + ".in", j, site.num_splits)}, comm,
                               {.stream = Stream::kTp, .category = Category::kComm}));
    }
    for (int j = 0; j < site.num_splits; ++j) {
      attrs.first = j * attrs.rows;
      product_into(gemm, fmt::format("{}.split{}", gemm.path, j), parts[static_cast<size_t>(j)], attrs, j == 0);
    }
    return parts;
  }

  TensorId part_of(TensorId x, std::string path, int j, int parts) {
    Shape shape = b_.tensor(x).shape;
    shape[0] /= parts;
    return b_.view(x, std::move(path), shape, j * shape.elements());
  }

  // The gathered tensor as others read it, from what the steps received.
  void put_together(const TpOverlapSite& site, const Op& gather, const std::vector<TensorId>& parts) {
    const int64_t local = b_.tensor(gather.in[0]).shape[0];
    RunAttrs attrs;
    if (site.method == Method::kRingExchange) {
      attrs.run = local;
      attrs.ring = tp_;
    } else {
      attrs.run = local / site.num_splits;
      for (int64_t rank = 0; rank < tp_; ++rank)
        for (int64_t j = 0; j < site.num_splits; ++j) attrs.order.push_back(j * tp_ + rank);
    }
    b_.emit(kReorderRuns, gather.path + ".whole", parts, attrs, {.out = gather.out});
  }

  // A product whose result only a reduce-scatter reads: fprop of a row-parallel layer, dgrad of a column-parallel one.
  bool scattered_product(size_t at) {
    const Op& gemm = old_[at];
    if (gemm.role != Role::kFprop && gemm.role != Role::kDgrad) return false;
    const std::vector<size_t>& users = readers(gemm.out[0]);
    if (users.size() != 1 || !is_tp(old_[users[0]], kReduceScatter)) return false;
    const TpOverlapSite* site = site_of(sites_, gemm);
    if (site == nullptr || site->method == Method::kBulk) return false;
    const Op scatter = take(users[0]);
    if (site->method == Method::kRingExchange)
      ring_scatter(*site, gemm, scatter);
    else
      split_scatter(*site, gemm, scatter);
    return true;
  }

  TensorId product_of(const Op& gemm, const std::string& path, const GemmRowsAttrs& attrs) {
    b_.emit(kGemmRows, path, {gemm.in[0], gemm.in[1]}, attrs,
            {.role = gemm.role, .category = Category::kComm, .out_path = path + ".out"});
    return b_.ops().back().out[0];
  }

  // The products of the others' rows travel to them while the next is computed; one's own comes last. A part that is on
  // its way and the next product's stand in the list so that they live at once: memory that they shared would make the
  // product wait for the collective.
  void ring_scatter(const TpOverlapSite& site, const Op& gemm, const Op& scatter) {
    CommAttrs comm = with_sms(std::get<CommAttrs>(scatter.attrs), site);
    GemmRowsAttrs attrs = blocks_of(gemm, site, b_.tensor(scatter.out[0]).shape.rows());
    attrs.blocks = 1;
    attrs.ring = tp_;
    std::vector<TensorId> parts;
    TensorId next = kNoTensor;
    for (int j = 1; j <= tp_; ++j) {
      const TensorId part = next;
      attrs.step = -(j % tp_);
      next = product_of(gemm, fmt::format("{}.ring{}", gemm.path, j % tp_), attrs);
      if (j == 1) continue;
      comm.distance = j - 1;
      parts.push_back(exchange(site, fmt::format("{}.ring{}", scatter.path, j - 1), part, comm));
    }
    parts.insert(parts.begin(), next);
    const PartAttrs sum{b_.tensor(scatter.out[0]).shape[0], std::vector<int64_t>(parts.size(), 0)};
    b_.emit(kAddParts, scatter.path + ".sum", parts, sum, {.out = scatter.out});
  }

  TensorId exchange(const TpOverlapSite& site, const std::string& path, TensorId part, const CommAttrs& comm) {
    const EmitOptions moves{.stream = Stream::kTp, .category = Category::kComm, .out_path = path + ".out"};
    if (!site.fp8_buf) return b_.emit1(kRingShift, path, {part}, comm, moves);
    const TensorId packed = b_.emit1(kPackFp8, path + ".pack", {part}, NoAttrs{}, {.category = Category::kComm});
    const TensorId received = b_.emit1(kRingShift, path, {packed}, comm, moves);
    return b_.emit1(kUnpackFp8, path + ".unpack", {received}, PackAttrs{b_.tensor(part).shape, b_.tensor(part).dtype},
                    {.category = Category::kComm});
  }

  void split_scatter(const TpOverlapSite& site, const Op& gemm, const Op& scatter) {
    const CommAttrs comm = with_sms(std::get<CommAttrs>(scatter.attrs), site);
    const int64_t local = b_.tensor(scatter.out[0]).shape.rows();
    GemmRowsAttrs attrs = blocks_of(gemm, site, local);
    attrs.rows = local / site.num_splits;
    TensorId part = kNoTensor;
    for (int j = 0; j <= site.num_splits; ++j) {  // as in a ring, the next part is there while one is reduced
      const TensorId before = part;
      attrs.first = j * attrs.rows;
      if (j < site.num_splits) part = product_of(gemm, fmt::format("{}.split{}", gemm.path, j), attrs);
      if (j == 0) continue;
      const std::string path = fmt::format("{}.split{}", scatter.path, j - 1);
      b_.emit(kReduceScatter, path, {before}, comm,
              {.stream = Stream::kTp, .out = {part_of(scatter.out[0], path + ".out", j - 1, site.num_splits)}});
    }
  }

  static std::string base_of(const Op& op) { return op.path.substr(0, op.path.rfind('.')); }

  // The products that give the weight gradient of the layer whose dgrad stands at `dgrad`.
  std::vector<size_t> wgrads_of(size_t dgrad) const {
    std::vector<size_t> found;
    for (size_t i = dgrad + 1; i < old_.size() && i < dgrad + 8; ++i)
      if (is_product(old_[i], Role::kWgrad) && base_of(old_[i]) == base_of(old_[dgrad])) found.push_back(i);
    return found;
  }

  // The ops after dgrad that what `gather` reads comes from (a norm that is recomputed), in order; nothing where one of
  // them needs what dgrad gives.
  std::optional<std::vector<size_t>> makers_between(size_t dgrad, size_t gather) const {
    std::set<TensorId> wanted;
    const auto want = [&](const Op& op) {
      for (TensorId id : op.in) wanted.insert(program_.storage(id));
    };
    const auto makes = [&](const Op& op) {
      return std::any_of(op.out.begin(), op.out.end(),
                         [&](TensorId id) { return wanted.contains(program_.storage(id)); });
    };
    std::vector<size_t> makers;
    want(old_[gather]);
    for (size_t i = gather; i-- > dgrad + 1;) {
      if (gone_[i] || !makes(old_[i])) continue;
      want(old_[i]);
      makers.insert(makers.begin(), i);
    }
    if (makes(old_[dgrad])) return std::nullopt;
    return makers;
  }

  // Whether wgrad's right operand is what the collective gave, or its quantized form.
  bool feeds(size_t gather, size_t wgrad) const {
    const TensorId gathered = old_[gather].out[0], right = old_[wgrad].in[1];
    if (gathered == right) return true;
    for (size_t i = gather + 1; i < wgrad; ++i)
      if (old_[i].in[0] == gathered && std::find(old_[i].out.begin(), old_[i].out.end(), right) != old_[i].out.end())
        return old_[i].role == Role::kNone;
    return false;
  }

  // Before dgrad: the all-gather that only wgrad needs.
  void bulk_gather(size_t dgrad) {
    const TpOverlapSite* site = site_of(sites_, old_[dgrad]);
    if (site == nullptr || site->method != Method::kBulk) return;
    for (size_t wgrad : wgrads_of(dgrad)) {
      for (size_t i = dgrad + 1; i < wgrad; ++i) {
        if (gone_[i] || !is_tp(old_[i], kAllGather) || !feeds(i, wgrad)) continue;
        const auto makers = makers_between(dgrad, i);
        if (!makers) continue;
        for (size_t maker : *makers) b_.ops().push_back(take(maker));
        Op gather = take(i);
        gather.attrs = with_sms(std::get<CommAttrs>(gather.attrs), *site);
        b_.ops().push_back(std::move(gather));
        leave_sms(old_[dgrad], margin(*site));
      }
    }
  }

  // After dgrad and before wgrad: the reduce-scatter of what dgrad gave.
  void bulk_scatter(size_t dgrad) {
    const std::vector<size_t> wgrads = wgrads_of(dgrad);
    if (wgrads.empty()) return;
    const TpOverlapSite* site = site_of(sites_, old_[wgrads[0]]);
    if (site == nullptr || site->method != Method::kBulk) return;
    for (size_t user : readers(old_[dgrad].out[0])) {
      if (!is_tp(old_[user], kReduceScatter) || readers(old_[dgrad].out[0]).size() != 1) continue;
      Op scatter = take(user);
      scatter.attrs = with_sms(std::get<CommAttrs>(scatter.attrs), *site);
      b_.ops().push_back(std::move(scatter));
      for (size_t wgrad : wgrads) leave_sms(old_[wgrad], margin(*site));
    }
  }

  Program& program_;
  Builder b_;
  int segment_;
  int tp_;
  const Sites& sites_;
  std::vector<Op> old_;
  std::vector<bool> gone_;
  std::map<TensorId, std::vector<size_t>> readers_;
};

}  // namespace

void overlap_tensor_parallel(Program& program, int tp, const std::vector<TpOverlapSite>& sites) {
  if (sites.empty()) return;
  for (size_t s = 0; s < program.segments.size(); ++s)
    if (is_micro_batched(program.segments[s].kind)) Overlap(program, static_cast<int>(s), tp, sites).run();
}

}  // namespace mbb::trainer
