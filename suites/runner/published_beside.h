// What others published for a configuration like this one, in words for the row beside ours.
#pragma once

#include <string>
#include <string_view>

#include "baselines/published/published.h"
#include "baselines/store/records.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

// The hardware as published tables name it: "h100-sxm" is "H100". Empty when none of ours is meant by a name there.
std::string_view published_hardware(std::string_view hardware);

// Rows of the same model, GPUs, batch, sequence, mapping and precision ("fp8" of a source that does not say which
// matches the FP8 recipes). Mapping sizes that a source leaves out match anything. Variants are other steps, but for
// "dropless", which this trainer's routing is. Newest first.
std::vector<baselines::PublishedRow> published_like(const trainer::Layout& layout, std::string_view hardware);

// "1639 tokens/s/GPU, 736 TFLOP/s causal (Megatron-Bridge 26.02.01; 3 older rows)". TFLOP/s published with full
// attention are recounted by the causal convention, and said so; so is what of the mapping the source leaves open.
// Empty without such a row.
std::string published_beside(const trainer::Layout& layout, std::string_view hardware);

// Tokens/s/GPU of that row; NaN without one, without a speed, or where it leaves open what this configuration sets:
// such a row may be of another step.
double published_rate(const trainer::Layout& layout, std::string_view hardware);

// The metric published_error of a projected cell whose published step ran at `rate` tokens/s/GPU; nothing when NaN.
void add_published_error(baselines::Cell& cell, double rate);

}  // namespace mbb::suites
