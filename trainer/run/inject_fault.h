// A rank that misbehaves on purpose (debug.inject_fault), to see how a run ends: on this machine, under this launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer {

// kBadArgument unless `fault` is empty or KIND@RANK with a rank of the world; a trap needs a GPU.
Status check_fault(const std::string& fault, int world_size, bool on_gpu);

// Half a second into the second step (the first, where it is the only one), on that rank: `exception` and `error` fail,
// `kill` sends SIGKILL to the rank's process, `hang` runs for ever without a sign of life, `return` gives true: the
// rank leaves as if it had done everything, `trap` calls plant_trap, after which the step fails on the device. `fault`
// is checked.
Result<bool> inject_fault(const std::string& fault, int rank, int64_t step, int64_t steps,
                          const std::function<Status()>& plant_trap);

}  // namespace mbb::trainer
