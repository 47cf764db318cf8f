// Whether the devices of a cell were well while it ran, from the telemetry beside its launches.
#pragma once

#include <filesystem>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "profiler/capture/telemetry_summary.h"

namespace mbb::suites {

// kNotFound where the launch left none.
Result<profiler::TelemetrySummary> launch_telemetry(const std::filesystem::path& launch_folder);

// Troubles of a launch become counts of it; with one, a cell that was ok is unstable: its times are no evidence.
void judge_health(baselines::Cell& cell, baselines::Launch& launch, const profiler::TelemetrySummary& summary);

}  // namespace mbb::suites
