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

// What rows can be taken of: fprop or dgrad, whose rows are A's.
bool is_split(const Op& op) {
  return (op.kind == &kGemm || op.kind == &kGemmScaled) && (op.role == Role::kFprop || op.role == Role::kDgrad);
}
bool quantizes_tensorwise(const Op& op) {
  return op.kind == &kQuantize || op.kind == &kQuantizeDelayed;
}

// Whole quantized products have no such attribute, and their sites no margin (tp_overlap_sites).
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
    for (const Segment& segment : program_.segments)
      for (const Op& op : segment.ops) elsewhere_.insert(op.in.begin(), op.in.end());
    gone_.assign(old_.size(), false);
    for (size_t i = 0; i < old_.size(); ++i) {
      if (gone_[i]) continue;
      if (is_tp(old_[i], kAllGather) && (gathered_product(i) || quantized_gather(i))) continue;
      if (const auto fed = fed_.find(i); fed != fed_.end()) {
        from_codes(fed->second, take(i));
        continue;
      }
      if (is_split(old_[i]) && scattered_product(i)) continue;
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
    bool others = elsewhere_.contains(gathered);
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
    const std::vector<TensorId> parts = gather_into(*site, gather, gather.in[0], gemm);
    if (others) put_together(*site, gather, gather.in[0], parts, gather.out[0]);
    return true;
  }

  // The product of a part of every rank's rows, or in a ring of one rank's: what a rank holds of the parted side.
  RowBlocks blocks_of(int64_t rows) const {
    RowBlocks part;
    part.whole_rows = rows * tp_;
    part.blocks = tp_;
    part.rows = part.stride = rows;
    return part;
  }
  RowBlocks ring_block(int64_t rows) const {
    RowBlocks part = blocks_of(rows);
    part.blocks = 1;
    part.ring = tp_;
    return part;
  }

  // `gemm` of the rows `x`, where they lie elsewhere than in all of A; `more` is read beside.
  void emit_product(const Op& gemm, const TpOverlapSite& site, std::string path, TensorId x, const RowBlocks& part,
                    std::vector<TensorId> more, EmitOptions options) {
    std::vector<TensorId> in = gemm.in;
    in[0] = x;
    in.insert(in.end(), more.begin(), more.end());
    options.role = gemm.role;
    options.when = gemm.when;
    if (const auto* scaled = std::get_if<ScaledGemmAttrs>(&gemm.attrs)) {
      b_.emit(kGemmScaledRows, std::move(path), std::move(in), ScaledRowsAttrs{*scaled, margin(site), part}, options);
    } else {
      GemmRowsAttrs attrs{std::get<GemmAttrs>(gemm.attrs), part};
      attrs.gemm.sm_margin = margin(site);
      b_.emit(kGemmRows, std::move(path), std::move(in), attrs, options);
    }
    b_.ops().back().recompute = gemm.recompute;
  }

  // Into blocks of the whole result, which the first product begins and the others go on with.
  void product_into(const Op& gemm, const TpOverlapSite& site, const std::string& path, TensorId x,
                    const RowBlocks& part, bool begins) {
    emit_product(gemm, site, path, x, part, begins ? std::vector<TensorId>{} : gemm.out,
                 {.category = b_.tensor(gemm.out[0]).category, .out = gemm.out});
  }

  // The steps of a gather of `x` and the product of what it gathers; gives what arrived.
  std::vector<TensorId> gather_into(const TpOverlapSite& site, const Op& gather, TensorId x, const Op& gemm) {
    return site.method == Method::kRingExchange ? ring_gather(site, gather, x, gemm)
                                                : split_gather(site, gather, x, gemm);
  }

  std::vector<TensorId> ring_gather(const TpOverlapSite& site, const Op& gather, TensorId x, const Op& gemm) {
    const CommAttrs comm = with_sms(std::get<CommAttrs>(gather.attrs), site);
    RowBlocks part = ring_block(b_.tensor(x).shape.rows());
    part.of_result = true;
    std::vector<TensorId> held{x};
    for (int j = 0; j < tp_; ++j) {
      if (j + 1 < tp_)
        held.push_back(b_.emit1(kRingShift, fmt::format("{}.ring{}", gather.path, j + 1), {held.back()}, comm,
                                {.stream = Stream::kTp, .category = Category::kComm}));
      part.step = j;
      product_into(gemm, site, fmt::format("{}.ring{}", gemm.path, j), held[static_cast<size_t>(j)], part, j == 0);
    }
    return held;
  }

  std::vector<TensorId> split_gather(const TpOverlapSite& site, const Op& gather, TensorId x, const Op& gemm) {
    const CommAttrs comm = with_sms(std::get<CommAttrs>(gather.attrs), site);
    RowBlocks part = blocks_of(b_.tensor(x).shape.rows());
    part.of_result = true;
    part.rows /= site.num_splits;
    std::vector<TensorId> parts;
    for (int j = 0; j < site.num_splits; ++j) {
      const std::string path = fmt::format("{}.split{}", gather.path, j);
      parts.push_back(b_.emit1(kAllGather, path, {part_of(x, path + ".in", j, site.num_splits)}, comm,
                               {.stream = Stream::kTp, .category = Category::kComm}));
    }
    for (int j = 0; j < site.num_splits; ++j) {
      part.first = j * part.rows;
      product_into(gemm, site, fmt::format("{}.split{}", gemm.path, j), parts[static_cast<size_t>(j)], part, j == 0);
    }
    return parts;
  }

  // An all-gather that only a tensorwise quantization reads, whose codes one product reads as its left operand. The
  // ranks' rows are quantized before they travel, as codes: with the scale of all of them, which is known before or
  // follows from the largest of the ranks' amaxes. The product's steps stand where the product does.
  bool quantized_gather(size_t at) {
    const std::vector<size_t>& users = readers(old_[at].out[0]);
    if (users.size() != 1 || elsewhere_.contains(old_[at].out[0]) || !quantizes_tensorwise(old_[users[0]]))
      return false;
    const Op& quantize = old_[users[0]];
    const std::vector<size_t>& of_codes = readers(quantize.out[0]);
    if (of_codes.size() != 1 || elsewhere_.contains(quantize.out[0]) || !is_split(old_[of_codes[0]]) ||
        old_[of_codes[0]].in[0] != quantize.out[0])
      return false;
    const TpOverlapSite* site = site_of(sites_, old_[of_codes[0]]);
    if (site == nullptr || site->method == Method::kBulk) return false;
    for (size_t reader : readers(quantize.out[1]))
      if (reader < of_codes[0]) return false;
    const Op gather = take(at);
    fed_[of_codes[0]] = {site, gather, quantize_own_rows(gather, take(users[0])), quantize.out[1]};
    return true;
  }

  // The codes of this rank's rows; scales are written where they were.
  TensorId quantize_own_rows(const Op& gather, const Op& quantize) {
    const TensorId x = gather.in[0];
    std::vector<TensorId> in = quantize.in;
    in[0] = x;
    if (quantize.kind == &kQuantize) {
      const std::string path = gather.path + ".amax";
      const TensorId amax = b_.emit1(kAmax, path, {x}, NoAttrs{}, {.category = Category::kComm});
      b_.emit(kAllReduce, path + ".all_reduce", {amax},
              CommAttrs{.group = GroupKind::kTp, .group_size = tp_, .reduce = ReduceKind::kMax},
              {.stream = Stream::kTp, .out = {amax}});
      in.push_back(amax);
    }
    const auto out = b_.emit(*quantize.kind, quantize.path, in, quantize.attrs,
                             {.category = Category::kComm,
                              .out = {kNoTensor, kNoTensor, quantize.out[2]},
                              .out_path = b_.tensor(quantize.out[0]).path + ".own"});
    return out[0];
  }

  struct Fed {
    const TpOverlapSite* site = nullptr;
    Op gather;
    TensorId codes = kNoTensor;       // of this rank's rows
    TensorId transposed = kNoTensor;  // of all rows' codes, as wgrad reads them
  };

  void from_codes(const Fed& fed, const Op& gemm) {
    const std::vector<TensorId> parts = gather_into(*fed.site, fed.gather, fed.codes, gemm);
    if (readers(fed.transposed).empty() && !elsewhere_.contains(fed.transposed)) return;
    const TensorId whole = put_together(*fed.site, fed.gather, fed.codes, parts, kNoTensor);
    b_.emit(kTransposeQuantized, fed.gather.path + ".transpose", {whole}, NoAttrs{}, {.out = {fed.transposed}});
  }

  TensorId part_of(TensorId x, std::string path, int j, int parts) {
    Shape shape = b_.tensor(x).shape;
    shape[0] /= parts;
    return b_.view(x, std::move(path), shape, j * shape.elements());
  }

  // All ranks' rows in their order, as others read them, from what the steps of a gather of `x` received.
  TensorId put_together(const TpOverlapSite& site, const Op& gather, TensorId x, const std::vector<TensorId>& parts,
                        TensorId to) {
    const int64_t local = b_.tensor(x).shape[0];
    RunAttrs attrs;
    if (site.method == Method::kRingExchange) {
      attrs.run = local;
      attrs.ring = tp_;
    } else {
      attrs.run = local / site.num_splits;
      for (int64_t rank = 0; rank < tp_; ++rank)
        for (int64_t j = 0; j < site.num_splits; ++j) attrs.order.push_back(j * tp_ + rank);
    }
    return b_.emit(kReorderRuns, gather.path + ".whole", parts, attrs, {.category = Category::kComm, .out = {to}})[0];
  }

  // A product whose result only a reduce-scatter reads: fprop of a row-parallel layer, dgrad of a column-parallel one.
  bool scattered_product(size_t at) {
    const Op& gemm = old_[at];
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

  TensorId product_of(const Op& gemm, const TpOverlapSite& site, const std::string& path, const RowBlocks& part) {
    emit_product(gemm, site, path, gemm.in[0], part, {}, {.category = Category::kComm, .out_path = path + ".out"});
    return b_.ops().back().out[0];
  }

  // The products of the others' rows travel to them while the next is computed; one's own comes last. A part that is on
  // its way and the next product's stand in the list so that they live at once: memory that they shared would make the
  // product wait for the collective.
  void ring_scatter(const TpOverlapSite& site, const Op& gemm, const Op& scatter) {
    CommAttrs comm = with_sms(std::get<CommAttrs>(scatter.attrs), site);
    RowBlocks rows = ring_block(b_.tensor(scatter.out[0]).shape.rows());
    std::vector<TensorId> parts;
    TensorId next = kNoTensor;
    for (int j = 1; j <= tp_; ++j) {
      const TensorId part = next;
      rows.step = -(j % tp_);
      next = product_of(gemm, site, fmt::format("{}.ring{}", gemm.path, j % tp_), rows);
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
    RowBlocks rows = blocks_of(b_.tensor(scatter.out[0]).shape.rows());
    rows.rows /= site.num_splits;
    TensorId part = kNoTensor;
    for (int j = 0; j <= site.num_splits; ++j) {  // as in a ring, the next part is there while one is reduced
      const TensorId before = part;
      rows.first = j * rows.rows;
      if (j < site.num_splits) part = product_of(gemm, site, fmt::format("{}.split{}", gemm.path, j), rows);
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
  std::set<TensorId> elsewhere_;  // what other segments read
  std::map<size_t, Fed> fed_;     // products whose rows arrive as codes
};

}  // namespace

void overlap_tensor_parallel(Program& program, int tp, const std::vector<TpOverlapSite>& sites) {
  if (sites.empty()) return;
  for (size_t s = 0; s < program.segments.size(); ++s)
    if (is_micro_batched(program.segments[s].kind)) Overlap(program, static_cast<int>(s), tp, sites).run();
}

}  // namespace mbb::trainer
