// T5's buckets of relative positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "trainer/ops/attrs.h"

namespace mbb::trainer {

// T5's bucket of a key at `distance` = key position − query position (Raffel et al., 2020), in fp32 like its reference.
inline int relative_bucket(int64_t distance, const AttentionAttrs& a) {
  int buckets = a.relative_buckets;
  int bucket = 0;
  int64_t away = -std::min<int64_t>(distance, 0);
  if (!a.causal) {
    buckets /= 2;
    if (distance > 0) bucket = buckets;
    away = std::abs(distance);
  }
  const int exact = buckets / 2;
  if (away < exact) return bucket + static_cast<int>(away);
  const float whole = std::log(static_cast<float>(a.relative_max_distance) / static_cast<float>(exact));
  const float part = std::log(static_cast<float>(away) / static_cast<float>(exact)) / whole;
  const int steps = static_cast<int>(part * static_cast<float>(buckets - exact));
  return bucket + std::min(exact + steps, buckets - 1);
}

}  // namespace mbb::trainer
