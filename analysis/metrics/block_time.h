// The time of the Transformer blocks alone, by which a recipe of fewer bits is judged: what lies outside them
// (embedding, LM head, loss, optimizer) stays in high precision and would dilute the gain.
#pragma once

#include <string_view>

#include "baselines/store/records.h"

namespace mbb::analysis {

// Whether an op's path is of a Transformer block: "layers.3.mlp.fc1.fwd", "encoder.layers.0...".
bool is_block_path(std::string_view path);

// Adds the block_time metric: exclusive time of the blocks' computation a step, of the rank class with most, the mean
// over launches. Nothing where no step was traced.
void add_block_time(baselines::Cell& cell);

}  // namespace mbb::analysis
