// Where a rank's thread runs: host.cpu_binding.
#pragma once

#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer {

// Binds the calling thread. `binding`: "none", "local" (CPUs near `device`; on the CPU, device -1, an equal part of the
// allowed CPUs for each of `ranks`), or a list of CPUs for all ranks. Errors (kBadArgument, kUnavailable) name the
// knob.
Status bind_rank(const std::string& binding, int device, int rank, int ranks);

// Tries a list on a thread of its own, before anything runs: bind_rank's errors.
Status check_binding(const std::string& binding);

// What is in force for the calling thread: "0-7 (NUMA node 0)".
std::string binding_in_force();

}  // namespace mbb::trainer
