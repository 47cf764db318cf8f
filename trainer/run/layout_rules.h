// Rules of resolve() that stand in files of their own.
#pragma once

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// Settles the sharding strategy and refuses combinations of [data_parallel] that contradict each other.
Status resolve_data_parallel(Config& config);

}  // namespace mbb::trainer
