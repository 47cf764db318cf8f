// Weak and strong scaling: cells that differ in their number of GPUs, and at most in their batch, beside the smallest.
#pragma once

#include <optional>

#include "analysis/report/table.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// One group of rows for every set of ok cells with the same knobs but for parallel.gpus and train.global_batch_size,
// the same class and the same card: strong scaling where the batch is the same too, weak where a GPU's share of it is.
// Efficiency is tokens/s/GPU over the smallest cell's. CPU ranks and emulated recipes have no speed to scale. Nothing
// where no cells belong together.
std::optional<Table> scaling_table(const baselines::Run& run);

}  // namespace mbb::analysis
