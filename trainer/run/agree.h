// Ranks that are processes train together only when each was told the same and is the same program.
#pragma once

#include <span>
#include <string>

#include "profiler/base/error.h"
#include "trainer/comm/communicator.h"
#include "trainer/run/config.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

// Compares build, configuration and step programs of all ranks. kMismatch on rank 0, which names two ranks and what
// differs; its error ends the others' wait. All ranks call it.
Status agree(Communicator& everyone, const Config& config, const StepPrograms& programs);

// What each rank is, as "key=value" lines in one order: the first rank that differs from rank 0, and in what.
Status check_equal(std::span<const std::string> of_rank);

}  // namespace mbb::trainer
