// A cost table written as TOML (baselines/kernels/*.toml).
#pragma once

#include <string>

#include "profiler/base/error.h"
#include "trainer/execute/simulate/cost_table.h"

namespace mbb::suites {

// Errors are "path:line:column: what": an unknown or missing entry, a rate that is not above 0.
Result<trainer::CostTable> parse_costs(std::string text, const std::string& path);

}  // namespace mbb::suites
