// The memory plan of each rank class as the records of a bundle.
#pragma once

#include <vector>

#include "baselines/store/records.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

// Values of a step, over all rank classes, up to which a plan's map lists each. A step of more repeats itself,
// micro-batch by micro-batch, for hundreds of megabytes.
inline constexpr int64_t kMostPlanValues = 20'000;

// One map a rank class, in walk positions: every value of the step with its place and lifetime, the bytes alive over
// the step, planned bytes by category at the peak, and the live set there. Beyond kMostPlanValues only the live set is
// listed, and the curve has one moment a call.
std::vector<baselines::MemoryMap> memory_maps(const trainer::Layout& layout, const trainer::StepPrograms& programs);

}  // namespace mbb::suites
