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
  bool operator==(const NormAttrs&) const = default;
};

// Vocabulary rows [coordinate·rows, ...) of the table are local; tokens outside contribute zeros (vocab parallel over
// TP).
struct EmbeddingAttrs {
  bool accumulate = false;
  bool operator==(const EmbeddingAttrs&) const = default;
};

// Heads are local. Packed qkv: last dimension [heads·d | kv_heads·d | kv_heads·d].
struct AttentionAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  bool causal = true;
  float scale = 1.0F;
  bool operator==(const AttentionAttrs&) const = default;
};

// Rotary embedding on the first heads + kv_heads heads of packed qkv, halves convention (i, i + d/2).
struct RopeAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  double theta = 10000.0;
  bool inverse = false;  // backward: rotate the other way
  bool operator==(const RopeAttrs&) const = default;
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
                           AdamAttrs, ScaleAttrs, CommAttrs>;

}  // namespace mbb::trainer
