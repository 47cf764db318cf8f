// Whether a launch's steps drift, and whether the device's clock or the work does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "profiler/capture/telemetry_summary.h"

namespace mbb::suites {

// A step's place on telemetry's clock.
struct StepEnd {
  int64_t index = 0;
  int64_t end_ns = 0;
};

// The launch's timed steps, warm-up left out, with the SM clock during each.
struct ClockedSteps {
  std::vector<double> ns;
  std::vector<double> mhz;  // mean of the samples that fall into the step; between its neighbours where none does
};
ClockedSteps clock_steps(const baselines::Launch& launch, std::span<const StepEnd> ends,
                         std::span<const profiler::ClockSample> samples);

// From telemetry.csv and step_ends.csv of the launch's folder; kNotFound where they are not there.
Result<ClockedSteps> read_clocked_steps(const baselines::Launch& launch, const std::filesystem::path& folder);

// Adds a verdict "drift" that names the cause, and tells an unstable cell's reason; nothing for steps that do not
// drift.
void judge_drift(baselines::Cell& cell, const baselines::Launch& launch, const ClockedSteps& steps);

}  // namespace mbb::suites
