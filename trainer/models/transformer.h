// Builds the step program of a rank class: forward from the model's shape and the mapping, backward from the gradient
// rules, gradient sync and optimizer, the schedule; then scopes and rings.
#pragma once

#include "trainer/program/program.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// The program of `rank_class`. The layout is resolved, so this cannot fail but by a bug of ours.
Program build_program(const Layout& layout, const RankClass& rank_class);

}  // namespace mbb::trainer
