// Knobs that were given and do nothing, as lines for a person.
#pragma once

#include <string>
#include <vector>

#include "suites/matrix/suite.h"

namespace mbb::suites {

// One line a knob and what it needs, with the cells it was given to in vain: "no effect: overlap.overlap_p2p_comm =
// true (needs pp > 1) in one-rank, dp2". Empty where every knob does something.
std::vector<std::string> idle_notes(const Suite& suite);

}  // namespace mbb::suites
