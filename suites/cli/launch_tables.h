// Tables of what launches say about themselves: how their window was traced, and what was sampled while they ran.
#pragma once

#include <string>

#include "analysis/report/table.h"
#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "suites/cli/settings_of.h"

namespace mbb::suites {

// A row a launch that was captured on a GPU or says why it was not; `only`: one cell's, empty for all.
analysis::Table capture_table(const baselines::Run& run, const std::string& only);

// A row for the host and one a GPU of each launch, from the bundle of the run that `spec` names (@latest, an id, a
// folder). A bundle that is gone is said in the footer.
Result<analysis::Table> telemetry_of(const Settings& settings, const std::string& spec, const baselines::Run& run,
                                     const std::string& only);

}  // namespace mbb::suites
