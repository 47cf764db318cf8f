// Programs beside this one, which link what this one must not (a window system, Google Benchmark): it becomes them.
#pragma once

#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::suites {

// Does not come back unless `program` is not there (the error has `remedy`) or cannot be started.
Result<int> become(const std::string& program, const std::vector<std::string>& arguments, const std::string& remedy);

}  // namespace mbb::suites
