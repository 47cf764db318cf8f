// Core attention over a sequence that context parallelism divides: queries keep their rank and see the keys of all
// (gathered, or passing by in a ring), or an all-to-all gives every rank the whole sequence for a part of the heads; or
// first the one among neighbours, then a ring of those.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {
namespace {

std::vector<int64_t> qkv_parts(const AttentionAttrs& a) {
  return {int64_t{a.heads} * a.head_dim, int64_t{a.kv_heads} * a.head_dim, int64_t{a.kv_heads} * a.value_dim()};
}

// The ranks that keep their queries and exchange keys: all of context parallelism, or one of each group of neighbours.
struct Ring {
  GroupKind group = GroupKind::kCp;
  int size = 1;
  int index = 0;
};

TensorId core_over(BlockBuilder& k, const std::string& path, std::vector<TensorId> in, AttentionAttrs attrs,
                   const Ring& ring, bool gathered) {
  Builder& b = k.builder();
  const EmitOptions options{.out_path = path + ".core.out"};
  if (ring.size == 1) return b.emit(kAttention, path + ".core.fwd", in, attrs, options)[0];
  const std::vector<int64_t> parts = qkv_parts(attrs);
  const auto split = b.emit(kSplitColumns, path + ".split.fwd", {in[0]}, ColumnAttrs{{parts[0], parts[1] + parts[2]}},
                            {.out_path = path + ".split.out"});
  in[0] = split[0];
  in.insert(in.begin() + 1, split[1]);
  // Both ways, queries and keys each say where their sequences begin: here in the same pack.
  if (attrs.packed && !attrs.causal) in.push_back(in.back());
  if (!attrs.packed) attrs.queries = attrs.keys = context_positions(k.sequence(), ring.size, ring.index);
  if (!gathered)
    return b.emit(kRingAttention, path + ".core.fwd", in, RingAttrs{attrs, ring.group, ring.size, ring.index},
                  options)[0];
  in[1] = b.emit1(kAllGather, path + ".kv.all_gather.fwd", {split[1]},
                  CommAttrs{.group = ring.group, .group_size = ring.size},
                  {.stream = Stream::kCp, .category = Category::kComm});
  // A causal query sees neither all gathered keys nor those up to its own place, but of each rank's keys one or the
  // other, as in a ring's steps. Both ways it sees all; which rows of a pack meet is known when the step runs only.
  if (attrs.causal && !attrs.packed)
    return b.emit(kRingAttention, path + ".core.fwd", in, RingAttrs{attrs, ring.group, ring.size, ring.index, true},
                  options)[0];
  attrs.keys = gathered_positions(k.sequence(), ring.size);
  return b.emit(kCrossAttention, path + ".core.fwd", in, attrs, options)[0];
}

// Neighbours that exchange sequence against heads.
struct Exchange {
  GroupKind group = GroupKind::kCp;
  int size = 1;
  int index = 0;
  int64_t run = 0;      // rows of a chunk
  bool ordered = true;  // the whole sequence is put in its order; a pack's rows stay rank after rank

  CommAttrs comm() const { return {.group = group, .group_size = size}; }
  // Rank after rank, each with its early and its late chunk, in the order of the sequence.
  std::vector<int64_t> in_order() const {
    std::vector<int64_t> order;
    for (int64_t r = 0; r < size; ++r) order.push_back(2 * r);
    for (int64_t r = size; r-- > 0;) order.push_back(2 * r + 1);
    return order;
  }
  std::vector<int64_t> by_rank() const {
    std::vector<int64_t> order(2 * static_cast<size_t>(size));
    const std::vector<int64_t> sequence = in_order();
    for (size_t i = 0; i < sequence.size(); ++i) order[static_cast<size_t>(sequence[i])] = static_cast<int64_t>(i);
    return order;
  }
};

// [s, b, columns] of this rank's tokens to [size·s, b, columns / size] of all neighbours' tokens, in order.
TensorId to_heads(Builder& b, const std::string& path, TensorId x, const std::vector<int64_t>& parts,
                  const Exchange& e) {
  x = b.emit1(kColumnsToRows, path + ".to_heads.pack.fwd", {x}, ColumnAttrs{parts, e.size});
  x = b.emit1(kAllToAll, path + ".to_heads.all_to_all.fwd", {x}, e.comm(),
              {.stream = Stream::kCp, .category = Category::kComm});
  if (!e.ordered) return x;
  return b.emit1(kReorderRuns, path + ".to_heads.order.fwd", {x}, RunAttrs{e.run, e.in_order()});
}

TensorId to_sequence(Builder& b, const std::string& path, TensorId x, int64_t columns, const Exchange& e) {
  if (e.ordered) x = b.emit1(kReorderRuns, path + ".to_sequence.order.fwd", {x}, RunAttrs{e.run, e.by_rank()});
  x = b.emit1(kAllToAll, path + ".to_sequence.all_to_all.fwd", {x}, e.comm(),
              {.stream = Stream::kCp, .category = Category::kComm});
  return b.emit1(kRowsToColumns, path + ".to_sequence.unpack.fwd", {x}, ColumnAttrs{{columns}, e.size});
}

}  // namespace

TensorId context_attention(BlockBuilder& k, const std::string& path, std::vector<TensorId> in, AttentionAttrs attrs,
                           CpComm comm) {
  const Layout& l = k.layout();
  const int at = k.builder().program().rank_class.cp;
  const bool whole_heads = comm == CpComm::kP2p || comm == CpComm::kGather;
  const bool ring = comm == CpComm::kA2aP2p;
  const int inner = whole_heads ? 1 : ring ? l.mesh.sizes().cp_a2a : l.cp;
  // What is known of a pack's rows before it is there: whose they are.
  if (attrs.packed) attrs.queries = attrs.keys = group_positions(k.sequence(), l.cp, at / inner * inner, inner);
  if (whole_heads) return core_over(k, path, std::move(in), attrs, {GroupKind::kCp, l.cp, at}, comm == CpComm::kGather);
  const Exchange exchange{ring ? GroupKind::kCpA2a : GroupKind::kCp, inner, at % inner, k.sequence() / (2 * l.cp),
                          !attrs.packed};
  in[0] = to_heads(k.builder(), path, in[0], qkv_parts(attrs), exchange);
  const int64_t columns = int64_t{attrs.heads} * attrs.value_dim();
  attrs.all_heads = attrs.heads;
  attrs.heads /= inner;
  attrs.kv_heads /= inner;
  attrs.first_head = exchange.index * attrs.heads;
  const TensorId out = core_over(k, path, std::move(in), attrs, {GroupKind::kCpP2p, l.cp / inner, at / inner}, false);
  return to_sequence(k.builder(), path, out, columns, exchange);
}

}  // namespace mbb::trainer
