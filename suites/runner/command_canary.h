// Canaries of the GPUs that a user's own command trains on, timed around it.
#pragma once

#include <vector>

#include "baselines/store/records.h"
#include "suites/runner/canary.h"

namespace mbb::suites {

// The hidden command that times them: `mbbench time-gpus COUNT`.
inline constexpr const char* kTimeGpusCommand = "time-gpus";

// How many of this machine's GPUs a cell's command says it uses: 0 where it names no number of them, another device, or
// more than are here.
size_t gpus_here(const baselines::Cell& cell);

// Of GPUs 0 to count-1, in a process of its own: a CUDA context that stayed would take their memory from the command,
// and all of a GPU that lets one process in. Evidence only: empty where it cannot be.
std::vector<Canary> time_gpus(size_t count);

// What that process does: all at once, a line each.
int say_canaries(int count);

}  // namespace mbb::suites
