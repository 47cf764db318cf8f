// The fields of every attribute struct by name, in one place: what JSON writes and what the program hash covers.
//
// Each overload takes its struct apart into all its members, so a new member does not compile until it is named here.
#pragma once

#include <string>
#include <string_view>

#include "trainer/ops/attrs.h"

namespace mbb::trainer {

// visit(name, value): value is bool, an integer, float, double, std::string_view, DType, GroupKind, Shape, ReduceKind,
// Direction, MessageForm, Positions, or a vector of double, int64_t or BucketRange.
template <typename Visit>
void attr_fields(const NoAttrs&, Visit&&) {}

template <typename Visit>
void attr_fields(const GemmAttrs& attrs, Visit&& visit) {
  const auto& [trans_a, trans_b, accumulate, out_f32, sm_margin] = attrs;
  visit("trans_a", trans_a);
  visit("trans_b", trans_b);
  visit("accumulate", accumulate);
  visit("out_f32", out_f32);
  visit("sm_margin", sm_margin);
}

template <typename Visit>
void row_block_fields(const RowBlocks& part, Visit&& visit) {
  const auto& [of_result, whole_rows, blocks, rows, stride, first, ring, step] = part;
  visit("of_result", of_result);
  visit("whole_rows", whole_rows);
  visit("blocks", blocks);
  visit("rows", rows);
  visit("stride", stride);
  visit("first", first);
  visit("ring", ring);
  visit("step", step);
}

template <typename Visit>
void attr_fields(const GemmRowsAttrs& attrs, Visit&& visit) {
  const auto& [gemm, part] = attrs;
  attr_fields(gemm, visit);
  row_block_fields(part, visit);
}

template <typename Visit>
void attr_fields(const PackAttrs& attrs, Visit&& visit) {
  const auto& [shape, dtype] = attrs;
  visit("shape", shape);
  visit("dtype", dtype);
}

template <typename Visit>
void attr_fields(const ScaledGemmAttrs& attrs, Visit&& visit) {
  const auto& [accumulate, fast, out] = attrs;
  visit("accumulate", accumulate);
  visit("fast", fast);
  visit("out", out);
}

template <typename Visit>
void attr_fields(const ScaledRowsAttrs& attrs, Visit&& visit) {
  const auto& [gemm, sm_margin, part] = attrs;
  attr_fields(gemm, visit);
  visit("sm_margin", sm_margin);
  row_block_fields(part, visit);
}

template <typename Visit>
void attr_fields(const QuantizeAttrs& attrs, Visit&& visit) {
  const auto& [to] = attrs;
  visit("to", to);
}

template <typename Visit>
void attr_fields(const QuantizeBlocksAttrs& attrs, Visit&& visit) {
  const auto& [to, scale, block, square, stack, rotate, rotate_signs, stochastic, stream] = attrs;
  visit("to", to);
  visit("scale", std::string_view(name(scale)));
  visit("block", block);
  visit("square", square);
  visit("stack", stack);
  visit("rotate", rotate);
  visit("rotate_signs", rotate_signs);
  visit("stochastic", stochastic);
  visit("stream", stream);
}

template <typename Visit>
void attr_fields(const GemmBlocksAttrs& attrs, Visit&& visit) {
  const auto& [accumulate, block, a_square, b_square, out] = attrs;
  visit("accumulate", accumulate);
  visit("block", block);
  visit("a_square", a_square);
  visit("b_square", b_square);
  visit("out", out);
}

template <typename Visit>
void attr_fields(const AmaxAttrs& attrs, Visit&& visit) {
  const auto& [accumulate] = attrs;
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const ScaleUpdateAttrs& attrs, Visit&& visit) {
  const auto& [to, margin, most_recent] = attrs;
  visit("to", to);
  visit("margin", margin);
  visit("most_recent", most_recent);
}

template <typename Visit>
void attr_fields(const NormAttrs& attrs, Visit&& visit) {
  const auto& [eps, accumulate, one_plus, sm_margin] = attrs;
  visit("eps", eps);
  visit("accumulate", accumulate);
  visit("one_plus", one_plus);
  visit("sm_margin", sm_margin);
}

template <typename Visit>
void attr_fields(const EmbeddingAttrs& attrs, Visit&& visit) {
  const auto& [accumulate] = attrs;
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const AttentionAttrs& attrs, Visit&& visit) {
  const auto& [heads, kv_heads, head_dim, causal, scale, v_head_dim, window, sinks, relative_buckets,
               relative_max_distance, dropout, dropout_stream, accumulate, packed, backend, queries, keys, first_query,
               first_head, all_heads] = attrs;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("causal", causal);
  visit("scale", scale);
  visit("v_head_dim", v_head_dim);
  visit("window", window);
  visit("sinks", sinks);
  visit("relative_buckets", relative_buckets);
  visit("relative_max_distance", relative_max_distance);
  visit("dropout", dropout);
  visit("dropout_stream", dropout_stream);
  visit("accumulate", accumulate);
  visit("packed", packed);
  visit("backend", std::string_view(name(backend)));
  visit("queries", queries);
  visit("keys", keys);
  visit("first_query", first_query);
  visit("first_head", first_head);
  visit("all_heads", all_heads);
}

template <typename Visit>
void attr_fields(const RopeAttrs& attrs, Visit&& visit) {
  const auto& [heads, kv_heads, head_dim, rotation, inverse, rotary_offset, v_head_dim, first_head, turned_heads] =
      attrs;
  const auto& [theta, rotary_dim, interleaved, frequencies, factor, packed, positions] = rotation;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("theta", theta);
  visit("inverse", inverse);
  visit("rotary_dim", rotary_dim);
  visit("rotary_offset", rotary_offset);
  visit("interleaved", interleaved);
  visit("v_head_dim", v_head_dim);
  visit("frequencies", frequencies);
  visit("factor", factor);
  visit("packed", packed);
  visit("first_head", first_head);
  visit("turned_heads", turned_heads);
  visit("positions", positions);
}

template <typename Visit>
void attr_fields(const BucketAttrs& attrs, Visit&& visit) {
  const auto& [shard_group, group_size, sharded, elements, replica_axis, ranges] = attrs;
  visit("shard_group", shard_group);
  visit("group_size", group_size);
  visit("sharded", sharded);
  visit("elements", elements);
  visit("replica_axis", std::string_view(name(replica_axis)));
  visit("ranges", ranges);
}

template <typename Visit>
void attr_fields(const AdamAttrs& attrs, Visit&& visit) {
  const auto& [bucket, beta1, beta2, eps, weight_decay, master, scaled, seed] = attrs;
  attr_fields(bucket, visit);
  visit("beta1", beta1);
  visit("beta2", beta2);
  visit("eps", eps);
  visit("weight_decay", weight_decay);
  visit("master", std::string_view(name(master)));
  visit("scaled", scaled);
  visit("seed", seed);
}

template <typename Visit>
void attr_fields(const ScaleAttrs& attrs, Visit&& visit) {
  const auto& [clip_grad] = attrs;
  visit("clip_grad", clip_grad);
}

template <typename Visit>
void attr_fields(const CommAttrs& attrs, Visit&& visit) {
  const auto& [group, group_size, reduce, direction, ring, form, own_shard, shards, shard_group, distance, num_sm,
               cga_size, copy_engines, message, message_dtype, useful_rows] = attrs;
  visit("group", group);
  visit("group_size", group_size);
  visit("reduce", reduce);
  visit("direction", direction);
  visit("ring", ring);
  visit("form", form);
  visit("own_shard", own_shard);
  visit("shards", shards);
  visit("shard_group", shard_group);
  visit("distance", distance);
  visit("num_sm", num_sm);
  visit("cga_size", cga_size);
  visit("copy_engines", copy_engines);
  visit("message", message);
  visit("message_dtype", message_dtype);
  visit("useful_rows", useful_rows);
}

template <typename Visit>
void attr_fields(const QkNormAttrs& attrs, Visit&& visit) {
  const auto& [heads, kv_heads, head_dim, eps, accumulate] = attrs;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("eps", eps);
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const BiasAttrs& attrs, Visit&& visit) {
  const auto& [accumulate, scale] = attrs;
  visit("accumulate", accumulate);
  visit("scale", scale);
}

template <typename Visit>
void attr_fields(const ActivationAttrs& attrs, Visit&& visit) {
  const auto& [function, limit, alpha] = attrs;
  visit("function", std::string_view(name(function)));
  visit("limit", limit);
  visit("alpha", alpha);
}

template <typename Visit>
void attr_fields(const ScaleByAttrs& attrs, Visit&& visit) {
  const auto& [forward, backward] = attrs;
  visit("forward", forward);
  visit("backward", backward);
}

template <typename Visit>
void attr_fields(const DelayAttrs& attrs, Visit&& visit) {
  const auto& [ns] = attrs;
  visit("ns", ns);
}

template <typename Visit>
void attr_fields(const PositionAttrs& attrs, Visit&& visit) {
  const auto& [sequence_sharded, accumulate, packed, positions] = attrs;
  visit("sequence_sharded", sequence_sharded);
  visit("accumulate", accumulate);
  visit("packed", packed);
  visit("positions", positions);
}

template <typename Visit>
void attr_fields(const DropoutAttrs& attrs, Visit&& visit) {
  const auto& [probability, stream, sequence_sharded, positions, packed] = attrs;
  visit("probability", probability);
  visit("stream", stream);
  visit("sequence_sharded", sequence_sharded);
  visit("positions", positions);
  visit("packed", packed);
}

template <typename Visit>
void attr_fields(const LatentAttrs& attrs, Visit&& visit) {
  const auto& [heads, nope, rope, value, turns, rotation] = attrs;
  const auto& [theta, rotary_dim, interleaved, frequencies, factor, packed, positions] = rotation;
  visit("heads", heads);
  visit("nope", nope);
  visit("rope", rope);
  visit("value", value);
  visit("turns", turns);
  if (!turns) return;
  visit("theta", theta);
  visit("rotary_dim", rotary_dim);
  visit("interleaved", interleaved);
  visit("frequencies", frequencies);
  visit("factor", factor);
  visit("packed", packed);
  visit("positions", positions);
}

template <typename Visit>
void attr_fields(const RouterAttrs& attrs, Visit&& visit) {
  const auto& [top_k, sigmoid, top_k_first, normalize, scaling, groups, top_k_groups, biased, sequence_sharded,
               balanced, positions] = attrs;
  visit("top_k", top_k);
  visit("sigmoid", sigmoid);
  visit("top_k_first", top_k_first);
  visit("normalize", normalize);
  visit("scaling", scaling);
  visit("groups", groups);
  visit("top_k_groups", top_k_groups);
  visit("biased", biased);
  visit("sequence_sharded", sequence_sharded);
  visit("balanced", balanced);
  visit("positions", positions);
}

template <typename Visit>
void attr_fields(const DispatchAttrs& attrs, Visit&& visit) {
  const auto& [experts, rows, capacity, by_position, peers] = attrs;
  visit("experts", experts);
  visit("rows", rows);
  visit("capacity", capacity);
  visit("by_position", by_position);
  visit("peers", peers);
}

template <typename Visit>
void attr_fields(const ReceiveAttrs& attrs, Visit&& visit) {
  const auto& [members, experts, member_rows, slot_rows, capacity] = attrs;
  visit("members", members);
  visit("experts", experts);
  visit("member_rows", member_rows);
  visit("slot_rows", slot_rows);
  visit("capacity", capacity);
}

template <typename Visit>
void attr_fields(const GroupedGemmAttrs& attrs, Visit&& visit) {
  const auto& [useful_rows, accumulate, experts, only] = attrs;
  visit("useful_rows", useful_rows);
  visit("accumulate", accumulate);
  visit("experts", experts);
  visit("only", only);
}

template <typename Visit>
void attr_fields(const GroupedBiasAttrs& attrs, Visit&& visit) {
  const auto& [accumulate, scale, gradient] = attrs;
  visit("accumulate", accumulate);
  visit("scale", scale);
  visit("gradient", gradient);
}

template <typename Visit>
void attr_fields(const GroupedQuantizedAttrs& attrs, Visit&& visit) {
  const auto& [grouped, local_experts, fast, block, a_square, b_square, out] = attrs;
  attr_fields(grouped, visit);
  visit("local_experts", local_experts);
  visit("fast", fast);
  visit("block", block);
  visit("a_square", a_square);
  visit("b_square", b_square);
  visit("out", out);
}

template <typename Visit>
void attr_fields(const MoeLossAttrs& attrs, Visit&& visit) {
  const auto& [aux, z, sigmoid, gradient] = attrs;
  visit("aux", aux);
  visit("z", z);
  visit("sigmoid", sigmoid);
  visit("gradient", gradient);
}

template <typename Visit>
void attr_fields(const LossSumAttrs& attrs, Visit&& visit) {
  const auto& [scale, accumulate] = attrs;
  visit("scale", scale);
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const CountAttrs& attrs, Visit&& visit) {
  const auto& [experts, sets, accumulate] = attrs;
  visit("experts", experts);
  visit("sets", sets);
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const VocabularyAttrs& attrs, Visit&& visit) {
  const auto& [vocabulary] = attrs;
  visit("vocabulary", vocabulary);
}

template <typename Visit>
void attr_fields(const ExpertBiasAttrs& attrs, Visit&& visit) {
  const auto& [rate] = attrs;
  visit("rate", rate);
}

template <typename Visit>
void attr_fields(const ShiftAttrs& attrs, Visit&& visit) {
  const auto& [by, rows, packed, to, from] = attrs;
  visit("by", by);
  visit("rows", rows);
  visit("packed", packed);
  visit("to", to);
  visit("from", from);
}

template <typename Visit>
void attr_fields(const ColumnAttrs& attrs, Visit&& visit) {
  const auto& [parts, pieces] = attrs;
  visit("parts", parts);
  visit("pieces", pieces);
}

template <typename Visit>
void attr_fields(const RunAttrs& attrs, Visit&& visit) {
  const auto& [run, order, ring] = attrs;
  visit("run", run);
  visit("order", order);
  visit("ring", ring);
}

template <typename Visit>
void attr_fields(const PartAttrs& attrs, Visit&& visit) {
  const auto& [rows, first_rows, sinks, first_head] = attrs;
  visit("rows", rows);
  visit("first_rows", first_rows);
  visit("sinks", sinks);
  visit("first_head", first_head);
}

template <typename Visit>
void attr_fields(const RingAttrs& attrs, Visit&& visit) {
  const auto& [core, group, size, index, gathered] = attrs;
  attr_fields(core, visit);
  visit("group", group);
  visit("size", size);
  visit("index", index);
  visit("gathered", gathered);
}

}  // namespace mbb::trainer
