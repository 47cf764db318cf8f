// The committed figures and traces of a card as runs of a store, so that every view of a measured run can be opened on
// a machine without that card.
//
// A file of step figures becomes one run; its rows of one configuration are launches of one cell, whose step time is
// the mean of their medians. A trace becomes a run of one launch. Steps are only stored where they were traced: figures
// name medians. Program and memory plan are those of this build for the same knobs. The hour of a measurement was not
// kept: runs of a day stand a minute apart in the order of the list.
#pragma once

#include <filesystem>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::suites {

// Writes the bundles of `measured` (baselines/measured/h100-sxm) below `runs` and returns their folders, oldest first.
Result<std::vector<std::filesystem::path>> write_measured_bundles(const std::filesystem::path& measured,
                                                                  const std::filesystem::path& runs);

}  // namespace mbb::suites
