// From a traced step's exclusive times to the op rows of a launch, as stored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/exposure/breakdown.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// Path of the row that holds a rank class's idle time, so that its rows sum to its steps.
inline constexpr std::string_view kIdlePath = "(idle)";
// Name of the launch count that says how many steps its op rows are summed over.
inline constexpr std::string_view kOpStepsCount = "op_steps";

// Replaces launch.ops: exclusive ns and calls by (rank class, path, kind of time), summed over the steps of `times` and
// averaged over the ranks of the class; one kIdlePath row a class. Sets the kOpStepsCount count. What only the program
// knows (op kind, role, FLOPs, bytes) is left empty for the caller to fill by path.
void fill_op_rows(baselines::Launch& launch, const profiler::Trace& trace, const std::vector<StepTimes>& times,
                  const std::function<std::string(int32_t rank)>& rank_class);

// Steps the launch's op rows are summed over; 0 when it has none.
int64_t op_steps(const baselines::Launch& launch);

}  // namespace mbb::analysis
