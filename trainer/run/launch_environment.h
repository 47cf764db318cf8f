// Environment variables that a launch's process starts with: those that libraries read once and that are knobs here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/run/config.h"

namespace mbb::trainer {

// Names and values, set over what the process inherits. NCCL_NVLS_ENABLE is always among them: multicast over NVLink
// can take the GPUs of a shared host out of service, so it is on only where it is asked for.
std::vector<std::pair<std::string, std::string>> launch_environment(const Config& config);

}  // namespace mbb::trainer
