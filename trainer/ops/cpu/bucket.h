// Where a rank's shard of a flat bucket lies, and which tensors have parts in it.
#pragma once

#include <algorithm>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

struct Shard {
  int64_t begin, end;
};

inline Shard shard_of(const BucketAttrs& bucket, int64_t elements, const RankContext& rank) {
  if (!bucket.sharded) return {0, elements};
  const int64_t part = elements / bucket.group_size;
  const int64_t index = rank.index_in(bucket.shard_group);
  return {part * index, part * (index + 1)};
}

inline int64_t bucket_elements(const BucketAttrs& bucket, const CpuOperand& grads) {
  return bucket.elements > 0 ? bucket.elements : grads.elements();
}

// Where element 0 of the operand lies in the bucket.
inline int64_t first_element(const CpuOperand& operand, int64_t bucket_elements, Shard shard) {
  return operand.elements() < bucket_elements ? shard.begin : 0;
}

// visit(index, begin, end) for each range of the bucket that has a piece inside the shard.
template <typename Visit>
void for_ranges(const BucketAttrs& bucket, Shard shard, Visit&& visit) {
  for (size_t i = 0; i < bucket.ranges.size(); ++i) {
    const BucketRange& range = bucket.ranges[i];
    const int64_t begin = std::max(range.offset, shard.begin);
    const int64_t end = std::min(range.offset + range.count, shard.end);
    if (begin < end) visit(i, begin, end);
  }
}

}  // namespace mbb::trainer
