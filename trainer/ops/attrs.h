// Static parameters of ops, one struct a family. An op carries exactly one of them; passes and executors read it by
// type.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"
#include "trainer/program/shape.h"

namespace mbb::trainer {

struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};

// C (+)= op(A)·op(B) over matrices [rows, cols] (leading dimensions folded into rows).
struct GemmAttrs {
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;  // beta 1
  bool operator==(const GemmAttrs&) const = default;
};

struct NormAttrs {
  float eps = 1e-5F;
  bool accumulate = false;  // backward: weight gradient added to what is there
  bool one_plus = false;    // LayerNorm: multiplies by 1 + w
  bool operator==(const NormAttrs&) const = default;
};

// Vocabulary rows [coordinate·rows, ...) of the table are local; tokens outside contribute zeros (vocab parallel over
// TP).
struct EmbeddingAttrs {
  bool accumulate = false;
  bool operator==(const EmbeddingAttrs&) const = default;
};

// RMS norm of every query and key head of packed qkv, over head_dim.
struct QkNormAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  float eps = 1e-6F;
  bool accumulate = false;
  bool operator==(const QkNormAttrs&) const = default;
};

// Bias b enters as scale · b; a scale below 1 splits a bias over ranks whose outputs are summed.
struct BiasAttrs {
  bool accumulate = false;
  float scale = 1.0F;
  bool operator==(const BiasAttrs&) const = default;
};

enum class Pointwise : uint8_t { kGelu, kGeluTanh, kRelu, kSquaredRelu, kGeglu, kClampedSwiglu };
const char* name(Pointwise function);
// Gated functions read packed [gate | up] and give half its width.
constexpr bool is_gated(Pointwise function) {
  return function == Pointwise::kGeglu || function == Pointwise::kClampedSwiglu;
}

// Clamped SwiGLU: g = min(gate, limit), u = clamp(up, ±limit), g · sigmoid(alpha · g) · (u + 1).
struct ActivationAttrs {
  Pointwise function = Pointwise::kGelu;
  float limit = 7.0F;
  float alpha = 1.702F;
  bool operator==(const ActivationAttrs&) const = default;
};

// y = forward · x, dx = backward · dy.
struct ScaleByAttrs {
  double forward = 1.0;
  double backward = 1.0;
  bool operator==(const ScaleByAttrs&) const = default;
};

// x [s, b, ..]: positions begin at 0, or at TP coordinate · s where the sequence is sharded over TP.
struct PositionAttrs {
  bool sequence_sharded = false;
  bool accumulate = false;
  bool operator==(const PositionAttrs&) const = default;
};

// Keeps an element with probability 1 − probability, times 1 / (1 − probability). The stream is rng_stream(seed, path);
// the step record gives the step, `samples` the global sample, the position in the unsharded sequence the element.
struct DropoutAttrs {
  double probability = 0.0;
  int64_t stream = 0;
  bool sequence_sharded = false;
  bool operator==(const DropoutAttrs&) const = default;
};

// Heads are local. Packed qkv: last dimension [heads·d | kv_heads·d | kv_heads·dv]. Operands after qkv, in this order:
// sinks [heads] or the relative bias table [heads, buckets] (weights), samples and step record (dropout).
struct AttentionAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  bool causal = true;
  float scale = 1.0F;
  int v_head_dim = 0;        // dv; 0: head_dim
  int window = 0;            // a token sees itself and window − 1 before it; 0: all before it
  bool sinks = false;        // one more logit a head in the softmax's denominator
  int relative_buckets = 0;  // > 0: a bias by bucket of (key − query), T5's
  int relative_max_distance = 128;
  double dropout = 0.0;  // of the softmax's weights
  int64_t dropout_stream = 0;
  bool accumulate = false;  // backward: gradient of sinks or table added to what is there
  bool operator==(const AttentionAttrs&) const = default;

  int value_dim() const { return v_head_dim == 0 ? head_dim : v_head_dim; }
  bool has_weight() const { return sinks || relative_buckets > 0; }
};

// Rotary embedding of the first heads + kv_heads heads of packed qkv: elements [rotary_offset, rotary_offset +
// rotary_dim) of a head turn in pairs (i, i + rotary_dim/2), or (2i, 2i + 1) when interleaved.
struct RopeAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  double theta = 10000.0;  // frequency of pair i: theta^(−2i/rotary_dim), unless `frequencies` lists them
  bool inverse = false;    // backward: rotate the other way
  int rotary_dim = 0;      // 0: head_dim
  int rotary_offset = 0;
  bool interleaved = false;
  int v_head_dim = 0;               // 0: head_dim
  std::vector<double> frequencies;  // by pair, for scaled frequencies
  double factor = 1.0;              // multiplies cos and sin
  bool operator==(const RopeAttrs&) const = default;

  int turned() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  int value_dim() const { return v_head_dim == 0 ? head_dim : v_head_dim; }
};

// A contiguous piece of a flat optimizer bucket that one tensor fills.
struct BucketRange {
  std::string path;
  int64_t offset = 0;  // elements from the start of the bucket
  int64_t count = 0;
  bool decay = false;
  bool replicated_over_tp = false;  // counts once in the gradient norm
  bool operator==(const BucketRange&) const = default;
};

// Ops over this rank's shard of a flat bucket: elements [coordinate·n/size, ...) over `shard_group`.
struct BucketAttrs {
  GroupKind shard_group = GroupKind::kDpCp;
  int group_size = 1;
  bool sharded = false;
  std::vector<BucketRange> ranges;
  bool operator==(const BucketAttrs&) const = default;
};

struct AdamAttrs {
  BucketAttrs bucket;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  float weight_decay = 0.1F;
  bool operator==(const AdamAttrs&) const = default;
};

struct ScaleAttrs {
  double clip_grad = 1.0;  // 0: no clipping
  bool operator==(const ScaleAttrs&) const = default;
};

enum class ReduceKind : uint8_t { kSum, kMax };
enum class Direction : uint8_t { kForward, kBackward };  // along the pipeline

struct CommAttrs {
  GroupKind group = GroupKind::kTp;
  int group_size = 1;
  ReduceKind reduce = ReduceKind::kSum;
  Direction direction = Direction::kForward;  // send and recv: to or from the next or the previous stage
  bool own_shard = false;  // in = out = a flat buffer, of which a scatter writes and a gather sends this rank's 1/size
  Shape message;           // recv: what arrives
  DType message_dtype = DType::kF32;
  bool operator==(const CommAttrs&) const = default;
};

using Attrs = std::variant<NoAttrs, GemmAttrs, NormAttrs, EmbeddingAttrs, AttentionAttrs, RopeAttrs, BucketAttrs,
                           AdamAttrs, ScaleAttrs, CommAttrs, QkNormAttrs, BiasAttrs, ActivationAttrs, ScaleByAttrs,
                           PositionAttrs, DropoutAttrs>;

}  // namespace mbb::trainer
