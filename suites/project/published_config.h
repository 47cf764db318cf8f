// The configuration behind a published speed, as far as its source states it.
#pragma once

#include "baselines/published/published.h"
#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::suites {

// What Megatron's performance recipes set on H100 and the row's mapping on top: distributed optimizer with both
// overlaps, bf16 gradient reduction, no fp32 copy of it. An encoding of what sources say, row by row alike; nothing in
// it depends on the speed. kUnavailable with the reason: another trainer's row, a variant, a model this program lacks,
// a mapping that is not stated.
Result<trainer::Config> published_config(const baselines::PublishedRow& row);

// Virtual pipeline stages, where the source, or another row of its recipe, says; 0 where none does.
int64_t published_interleaving(const baselines::PublishedRow& row);

// Tensor-parallel overlap, which those recipes switch on for dense models wherever there is tensor parallelism, and
// which this program has for bf16 alone.
bool overlaps_tensor_parallel(const baselines::PublishedRow& row);

}  // namespace mbb::suites
