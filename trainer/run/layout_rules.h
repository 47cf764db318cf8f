// Rules of resolve() that stand in files of their own.
#pragma once

#include "profiler/base/error.h"
#include "trainer/models/model.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

inline bool has_dense_mlp(const ModelShape& model) {
  return !model.is_moe() || model.moe.first_dense_layers > 0;
}

// Settles the sharding strategy and refuses combinations of [data_parallel] that contradict each other.
Status resolve_data_parallel(Config& config);

}  // namespace mbb::trainer
