// What runs inside a cell's child process: one launch of one configuration, written into its launch folder.
#pragma once

#include <filesystem>
#include <string>

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::suites {

// The hidden command that the launcher starts: `mbbench launch-cell FOLDER`.
inline constexpr const char* kLaunchCommand = "launch-cell";

// Files of a launch folder that pass between parent and child, beside what bundles define.
inline constexpr const char* kLaunchConfigFile = "config.knobs";  // "key=value" lines, the whole configuration
inline constexpr const char* kStoppingRuleFile = "stop.rule";     // "STEADY_STEPS INTERVAL_PCT", where there is a rule
inline constexpr const char* kTelemetryFile = "telemetry.csv";
inline constexpr const char* kStepEndsFile = "step_ends.csv";  // on telemetry's clock, where GPUs are watched
inline constexpr const char* kLaunchLogFile = "stderr.log";
inline constexpr const char* kPlacesFile = "places.bin";  // where each rank stands (trainer/comm/places.h)

// Printed on stdout by a rank of an MPI launcher once the ranks have met.
inline constexpr const char* kJoinedLine = "joined";

inline constexpr int kExitFailed = 1;
inline constexpr int kExitAsked = 75;  // stopped, as it was asked to
inline constexpr int kExitDoesNotFit = 77;

// Trains the configuration in `folder`/config.knobs and writes the launch there, also when it fails (its reason says
// why). Of an MPI launcher's processes only rank 0's writes. Prints "step INDEX OF LOSS" lines on stdout as it goes.
// Returns the process's exit status: 0, kExitFailed on an error, kExitAsked on SIGTERM, kExitDoesNotFit when the step
// does not fit the device.
int run_launch(const std::filesystem::path& folder);

}  // namespace mbb::suites
