// Knobs that were given and do nothing, as lines for a person.
#pragma once

#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "suites/matrix/suite.h"

namespace mbb::suites {

// One line a knob and what it needs, with the cells it was given to in vain: "no effect: overlap.overlap_p2p_comm =
// true (needs pp > 1) in one-rank, dp2"; of projected cells those too that the projection leaves out. Empty where every
// knob does something. Of `finished` cells that ran, what their launches found out as they built their programs is told
// too (StepPrograms::idle).
std::vector<std::string> idle_notes(const Suite& suite, const std::vector<baselines::Cell>& finished = {});

// How a launch counts such a knob; behind it stands describe()'s text.
inline constexpr const char* kIdleCount = "no effect: ";

}  // namespace mbb::suites
