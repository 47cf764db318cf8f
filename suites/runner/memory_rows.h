// The memory plan of each rank class as the records of a bundle.
#pragma once

#include <vector>

#include "baselines/store/records.h"
#include "trainer/run/layout.h"
#include "trainer/run/train.h"

namespace mbb::suites {

// One map a rank class, in walk positions: every value of the step with its place and lifetime, the bytes alive over
// the step, planned bytes by category at the peak, and the live set there.
std::vector<baselines::MemoryMap> memory_maps(const trainer::Layout& layout, const trainer::StepPrograms& programs);

}  // namespace mbb::suites
