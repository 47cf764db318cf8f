// The fields of every attribute struct by name, in one place: what JSON writes and what the program hash covers.
//
// Each overload takes its struct apart into all its members, so a new member does not compile until it is named here.
#pragma once

#include <string>

#include "trainer/ops/attrs.h"

namespace mbb::trainer {

// visit(name, value): value is bool, an integer, float, double, DType, GroupKind, Shape, ReduceKind, Direction or a
// vector of BucketRange.
template <typename Visit>
void attr_fields(const NoAttrs&, Visit&&) {}

template <typename Visit>
void attr_fields(const GemmAttrs& attrs, Visit&& visit) {
  const auto& [trans_a, trans_b, accumulate] = attrs;
  visit("trans_a", trans_a);
  visit("trans_b", trans_b);
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const NormAttrs& attrs, Visit&& visit) {
  const auto& [eps, accumulate] = attrs;
  visit("eps", eps);
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const EmbeddingAttrs& attrs, Visit&& visit) {
  const auto& [accumulate] = attrs;
  visit("accumulate", accumulate);
}

template <typename Visit>
void attr_fields(const AttentionAttrs& attrs, Visit&& visit) {
  const auto& [heads, kv_heads, head_dim, causal, scale] = attrs;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("causal", causal);
  visit("scale", scale);
}

template <typename Visit>
void attr_fields(const RopeAttrs& attrs, Visit&& visit) {
  const auto& [heads, kv_heads, head_dim, theta, inverse] = attrs;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("theta", theta);
  visit("inverse", inverse);
}

template <typename Visit>
void attr_fields(const BucketAttrs& attrs, Visit&& visit) {
  const auto& [shard_group, group_size, sharded, ranges] = attrs;
  visit("shard_group", shard_group);
  visit("group_size", group_size);
  visit("sharded", sharded);
  visit("ranges", ranges);
}

template <typename Visit>
void attr_fields(const AdamAttrs& attrs, Visit&& visit) {
  const auto& [bucket, beta1, beta2, eps, weight_decay] = attrs;
  attr_fields(bucket, visit);
  visit("beta1", beta1);
  visit("beta2", beta2);
  visit("eps", eps);
  visit("weight_decay", weight_decay);
}

template <typename Visit>
void attr_fields(const ScaleAttrs& attrs, Visit&& visit) {
  const auto& [clip_grad] = attrs;
  visit("clip_grad", clip_grad);
}

template <typename Visit>
void attr_fields(const CommAttrs& attrs, Visit&& visit) {
  const auto& [group, group_size, reduce, direction, own_shard, message, message_dtype] = attrs;
  visit("group", group);
  visit("group_size", group_size);
  visit("reduce", reduce);
  visit("direction", direction);
  visit("own_shard", own_shard);
  visit("message", message);
  visit("message_dtype", message_dtype);
}

}  // namespace mbb::trainer
