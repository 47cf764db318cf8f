// Builds the step program of a rank class: forward from the model's shape and the mapping, backward from the gradient
// rules, gradient sync and optimizer, the schedule; then scopes and rings.
#pragma once

#include <vector>

#include "trainer/passes/effects.h"
#include "trainer/program/program.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// The program of `rank_class`, and what each pass did to it. The layout is resolved, so this cannot fail but by a bug
// of ours.
Program build_program(const Layout& layout, const RankClass& rank_class, std::vector<PassEffect>* effects = nullptr);

}  // namespace mbb::trainer
