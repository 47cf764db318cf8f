// Where the model is cut into pipeline chunks: by equal slots or by a layout string.
#pragma once

#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// What a chunk holds, as a layout string says it.
struct ChunkParts {
  bool embedding = false;
  int64_t layers = 0;
  int64_t mtp_layers = 0;
  bool loss = false;
  friend bool operator==(const ChunkParts&, const ChunkParts&) = default;
};

// Reads "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL": one entry a chunk, in the order of the model. Errors (kBadArgument) name the
// column, from 1.
Result<std::vector<ChunkParts>> parse_pipeline_layout(std::string_view text);

// Fills Layout::stages, vpp, micro_batch_group and message_form from the configuration, model, pp and micro_batches of
// `layout`. Errors (kBadArgument) name the knob and the rule.
Status split_stages(Layout& layout);

}  // namespace mbb::trainer
