// Self-attention over packed qkv: projections, biases, query and key norms, rotary positions, core.
#include <algorithm>

#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {
namespace {

struct Heads {
  int queries, keys, dim;
};

TensorId qk_norm(BlockBuilder& k, const std::string& path, TensorId qkv, const Heads& heads) {
  // Every TP rank norms its own heads with the same weight.
  const WeightOptions options{.init = {Init::Kind::kOnes, 0}, .partial_over_tp = true};
  const TensorId q = k.weight(path + ".q_norm.weight", Shape{heads.dim}, options);
  const TensorId key = k.weight(path + ".k_norm.weight", Shape{heads.dim}, options);
  const QkNormAttrs attrs{heads.queries, heads.keys, heads.dim, static_cast<float>(k.model().norm_eps), false};
  return k.builder().emit(kQkNorm, path + ".qk_norm.fwd", {qkv, q, key}, attrs, {.out_path = path + ".qk_norm.out"})[0];
}

// Of parts of `part` elements.
Rotation rotation(BlockBuilder& k, int64_t part) {
  const ModelShape& m = k.model();
  Rotation r{.theta = m.rope.theta, .interleaved = m.rope.interleaved};
  if (m.rotary_dim() != part) r.dim = static_cast<int>(m.rotary_dim());
  if (m.rope.scaling != RopeScaling::kNone) {
    r.frequencies = rope_inverse_frequencies(m);
    r.factor = rope_attention_factor(m);
  }
  r.positions = k.positions();
  r.packed = k.layout().reads_starts();
  return r;
}

// Latent attention's queries and keys turn while they are packed.
bool turns_in_packing(BlockBuilder& k) {
  const ModelShape& m = k.model();
  return m.is_mla() && m.position == PositionKind::kRope && !m.qk_norm && k.layout().config.fusion.apply_rope_fusion;
}

TensorId rope(BlockBuilder& k, const std::string& path, TensorId qkv, const Heads& heads) {
  const ModelShape& m = k.model();
  RopeAttrs attrs{heads.queries, heads.keys, heads.dim, rotation(k, heads.dim)};
  if (m.is_mla()) {
    attrs.rotary_offset = static_cast<int>(m.mla.nope_head_dim);
    attrs.v_head_dim = static_cast<int>(m.mla.v_head_dim);
  }
  const auto turn = [&](const std::string& name, TensorId x) {
    std::vector<TensorId> in{x};
    if (attrs.rotation.packed) in.push_back(k.starts());
    return k.builder().emit1(kRope, name + ".fwd", in, attrs, {.out_path = name + ".out"});
  };
  if (k.layout().config.fusion.apply_rope_fusion) return turn(path + ".rope", qkv);
  attrs.turned_heads = heads.queries;
  const TensorId queries = turn(path + ".rope.q", qkv);
  attrs.first_head = heads.queries;
  attrs.turned_heads = heads.keys;
  return turn(path + ".rope.k", queries);
}

// Scores, scale and mask, softmax and context, each an op.
TensorId unfused_core(BlockBuilder& k, const std::string& path, TensorId qkv, const AttentionAttrs& attrs) {
  Builder& b = k.builder();
  const auto named = [](const std::string& name) { return EmitOptions{.out_path = name + ".out"}; };
  const std::string core = path + ".core";
  const TensorId scores = b.emit1(kAttentionScores, core + ".scores.fwd", {qkv}, attrs, named(core + ".scores"));
  std::vector<TensorId> in{scores};
  if (attrs.packed) in.push_back(k.starts());
  TensorId weights = kNoTensor;
  if (k.layout().config.fusion.masked_softmax_fusion) {
    weights = b.emit1(kMaskedSoftmax, core + ".softmax.fwd", in, attrs, named(core + ".softmax"));
  } else {
    const TensorId masked = b.emit1(kScaleMask, core + ".mask.fwd", in, attrs, named(core + ".mask"));
    weights = b.emit1(kSoftmax, core + ".softmax.fwd", {masked}, attrs, named(core + ".softmax"));
  }
  in = {weights, qkv};
  if (attrs.dropout > 0) in.insert(in.end(), {k.samples(), b.program().ports.step_record});
  return b.emit1(kAttentionContext, core + ".context.fwd", in, attrs, named(core));
}

TensorId core(BlockBuilder& k, const std::string& path, TensorId qkv, const Heads& heads, const AttentionKind& kind) {
  const ModelShape& m = k.model();
  AttentionAttrs attrs{heads.queries, heads.keys, heads.dim, kind.causal, static_cast<float>(m.softmax_scale())};
  if (m.v_head_dim() != heads.dim) attrs.v_head_dim = static_cast<int>(m.v_head_dim());
  if (kind.window > 0 && kind.window < k.layout().sequence) attrs.window = static_cast<int>(kind.window);
  std::vector<TensorId> in{qkv};
  const std::vector<Cut> by_head{{0, Axis::kTp, {}}};
  if (m.attention_sinks) {
    attrs.sinks = true;
    in.push_back(
        k.weight(path + ".sinks", Shape{m.num_attention_heads}, {.cuts = by_head, .init = {Init::Kind::kZeros, 0}}));
  } else if (!kind.relative_bias.empty()) {
    attrs.relative_buckets = static_cast<int>(m.relative_buckets);
    attrs.relative_max_distance = static_cast<int>(m.relative_max_distance);
    in.push_back(k.weight(
        kind.relative_bias, Shape{m.num_attention_heads, m.relative_buckets},
        {.cuts = by_head, .init = k.normal(), .sharing = kind.every_stage ? k.shared_by_stages(true) : Sharing{}}));
  }
  attrs.dropout = k.layout().config.train.attention_dropout;
  if (attrs.dropout > 0) {
    attrs.dropout_stream = k.random_stream(path + ".core.dropout");
    in.push_back(k.samples());
    in.push_back(k.builder().program().ports.step_record);
  }
  attrs.packed = k.layout().reads_starts();
  attrs.backend = k.layout().config.fusion.attention_backend;
  if (attrs.backend == AttentionBackend::kUnfused) return unfused_core(k, path, qkv, attrs);
  if (attrs.packed) in.push_back(kind.encoder ? k.encoder_starts() : k.starts());
  if (k.layout().cp > 1) return context_attention(k, path, in, attrs, kind.comm);
  return k.builder().emit(kAttention, path + ".core.fwd", in, attrs, {.out_path = path + ".core.out"})[0];
}

// Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024). Latents and the rotary key come from the sharded sequence, are
// normed there and then gathered, which moves less than the hidden states.
TensorId latent_qkv(BlockBuilder& k, const std::string& path, TensorId x, const Heads& heads) {
  const ModelShape& m = k.model();
  const MlaShape& mla = m.mla;
  const auto latent = [&](const std::string& name, int64_t rank) {
    const TensorId down = k.replicated_linear(path + name + "_down", x, rank);
    return k.gather(path + name + "_up", k.rms_norm(path + name + "_norm", down));
  };
  const TensorId q_in = mla.q_lora_rank > 0 ? latent(".q", mla.q_lora_rank) : k.gather(path + ".q_up", x);
  const TensorId q = k.column_linear(path + ".q_up", q_in, {m.num_attention_heads * m.qk_head_dim()}, false);
  const TensorId kv = k.column_linear(path + ".kv_up", latent(".kv", mla.kv_lora_rank),
                                      {m.num_attention_heads * (mla.nope_head_dim + mla.v_head_dim)}, false);
  const TensorId key = k.gather(path + ".k_rope", k.replicated_linear(path + ".k_rope", x, mla.rope_head_dim));
  LatentAttrs attrs{heads.queries, static_cast<int>(mla.nope_head_dim), static_cast<int>(mla.rope_head_dim),
                    static_cast<int>(mla.v_head_dim)};
  attrs.turns = turns_in_packing(k);
  if (attrs.turns) attrs.rotation = rotation(k, mla.rope_head_dim);
  std::vector<TensorId> in{q, key, kv};
  if (attrs.packed()) in.push_back(k.starts());
  return k.builder().emit1(kLatentPack, path + ".pack.fwd", in, attrs, {.out_path = path + ".pack.out"});
}

}  // namespace

AttentionKind decoder_attention(const Layout& layout, int64_t layer) {
  const ModelShape& model = layout.model;
  AttentionKind kind;
  // Layers past the last (multi-token prediction) do as the last does.
  if (layout.cp > 1) kind.comm = layout.cp_comm[std::min(static_cast<size_t>(layer), layout.cp_comm.size() - 1)];
  if (model.is_sliding_layer(layer)) kind.window = model.sliding_window;
  if (model.position == PositionKind::kRelativeBias) {
    kind.relative_bias = "relative_bias.weight";
    kind.every_stage = true;
  }
  return kind;
}

TensorId attention_block(BlockBuilder& k, const std::string& path, TensorId x, const AttentionKind& kind) {
  const ModelShape& m = k.model();
  const int64_t kv = m.kv_size();
  const Heads heads{static_cast<int>(m.num_attention_heads / k.layout().tp),
                    static_cast<int>(m.num_query_groups / k.layout().tp), static_cast<int>(m.qk_head_dim())};
  TensorId qkv = m.is_mla()
                     ? latent_qkv(k, path, x, heads)
                     : k.column_linear(path + ".qkv", k.gather(path + ".qkv", x), {m.query_size(), kv, kv}, m.qkv_bias);
  if (m.qk_norm) qkv = qk_norm(k, path, qkv, heads);
  if (m.position == PositionKind::kRope && !turns_in_packing(k)) qkv = rope(k, path, qkv, heads);
  return k.row_linear(path + ".proj", core(k, path, qkv, heads, kind), m.num_attention_heads * m.v_head_dim(),
                      m.attention_out_bias);
}

}  // namespace mbb::trainer
