// The child process of a launch, ready to start: its folder holds the configuration, its environment what knobs set.
#pragma once

#include <filesystem>

#include "profiler/base/error.h"
#include "suites/runner/process.h"
#include "suites/runner/runner.h"
#include "trainer/run/config.h"

namespace mbb::suites {

// Writes the configuration into `folder`, which must exist.
Result<ProcessOptions> launch_process(const trainer::Config& config, const std::filesystem::path& folder,
                                      const RunOptions& options);

}  // namespace mbb::suites
