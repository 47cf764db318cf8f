// Made-up bundles with traces, for the viewer's tests, benchmarks and pictures; every run in them says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "baselines/store/fixture.h"
#include "profiler/base/error.h"

namespace mbb::viewer {

struct DemoOptions {
  int runs = 2;
  int cells = 4;
  int launches = 2;
  int steps = 40;
  std::int64_t trace_spans = 20'000;  // a launch; 0: no traces
  double stretch_last = 1.12;         // GEMMs of the newest run's traces take this much longer
};

// Writes them below `parent`, oldest first, and returns their folders.
Result<std::vector<std::filesystem::path>> write_demo_bundles(const std::filesystem::path& parent,
                                                              const DemoOptions& options = {});

}  // namespace mbb::viewer
