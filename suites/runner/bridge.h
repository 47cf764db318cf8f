// Launches of the old product in a new environment, so that a new epoch has something to be held against.
#pragma once

#include "suites/runner/gate.h"

namespace mbb::suites {

struct Bridged {
  int whole = 0;        // baselines with as many bridge launches as the gate asks for, earlier bridges' counted
  int begun = 0;        // baselines with fewer
  size_t launches = 0;  // of the one of those that has fewest
};

// Runs `options.program`, the old product, in this environment. Refused before anything runs where no baseline of the
// suite's cells waits for a bridge into this epoch (kNotFound), or where this is none's product (kMismatch); an error
// (kMismatch), too, when a cell's launches are no evidence.
Result<Bridged> run_bridge(const Suite& suite, const GateRequest& request, RunOptions options);

}  // namespace mbb::suites
