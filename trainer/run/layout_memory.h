// The rules of memory, fusion and packing knobs: what contradicts, and what a model does not have.
#pragma once

#include "trainer/run/layout.h"

namespace mbb::trainer {

// Errors (kBadArgument) name the knob and the remedy. `layout` has its model, batch and row sizes.
Status check_memory_rules(const Layout& layout);

// Knobs that count layers of a chunk, once the stages are cut.
Status check_layers_of_chunks(const Layout& layout);

}  // namespace mbb::trainer
