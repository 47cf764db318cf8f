// A projection as a stored cell, and as a run of its own that every other command can open.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "suites/matrix/settings.h"
#include "suites/project/projector.h"

namespace mbb::suites {

// Makes `cell` a projected one of that card and fills its metrics: step time with its 80 % interval, throughput, MFU,
// exposed communication by kind, bubble, peak memory. The cell's work, knobs and memory stay as they are.
void fill_projected(baselines::Cell& cell, const Projection& projection, bool uses_fp8);

// Writes a run of one cell, "projection", with the trace (if there is one) into the runs folder of the settings and its
// store. The bundle's folder.
Result<std::filesystem::path> save_projection(const Settings& settings, const std::vector<std::string>& argv,
                                              const trainer::Layout& layout, const trainer::StepPrograms& programs,
                                              const Projection& projection);

}  // namespace mbb::suites
