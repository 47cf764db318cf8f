// A cell that launches the user's own training command: described, launched and settled like one of the built-in
// trainer's, from what its log says.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "suites/foreign/log_records.h"
#include "suites/foreign/training_log.h"
#include "suites/matrix/suite.h"
#include "suites/runner/process.h"

namespace mbb::suites {

// Everything the command printed, of a launch folder.
inline constexpr const char* kCommandLogFile = "command.log";
// The command line as it was run.
inline constexpr const char* kCommandLineFile = "command.sh";

// The knob that a cell with a command of the user's own has, and no other.
inline constexpr const char* kCommandKnob = "command.run";

inline constexpr const char* kUnknownDevice = "unknown device";

// What is known before it runs: the command as knobs "command.*" that tell its series from others, GPUs, tokens, and
// model FLOPs where the model is one of ours. Class: measured on the device that is named, or on this machine's GPUs
// where there are enough; on an unknown device where neither is known, until a log names it, and without a number of
// them where nothing says it.
void describe_command(const Cell& planned, baselines::Cell& cell);

struct CommandLaunch {
  ProcessEnd end;
  baselines::Launch launch;  // with every step that came, also of a launch that failed; its reason says why
  TrainingLog log;
};

// Runs the command in `folder` to its end, its output going to kCommandLogFile, and reads its log. `on_step` hears of
// steps as they are printed. Errors (kIo) only where the machine does not let us start a process.
Result<CommandLaunch> launch_command(const Cell& planned, const baselines::Cell& cell, int index,
                                     const std::filesystem::path& folder, const std::atomic<bool>* stop,
                                     const std::function<void(const LoggedStep& step)>& on_step);

// After the last launch: takes from the logs what the configuration leaves open (batch, GPUs, device), breaks the cell
// where they contradict what a knob was set to, where their numbers are none (judge_numerics) or cannot be
// (judge_rate), and fills metrics; rates per GPU only where the GPUs are known. `logs` by launch. Imported logs are
// settled so too.
void settle_command(const Cell& planned, baselines::Cell& cell, const std::vector<TrainingLog>& logs);

// What the steps of a log are read with, before or beside what it says itself.
LogContext log_context(const Cell& planned, const TrainingLog& log, int64_t gpus);

// That the configuration asks for; without a mesh that resolves, by its sizes alone.
int64_t gpus_of(const trainer::Config& config);

// Tokens as given, 0 where nothing says; model FLOPs a token `with_flops`, where the configuration resolves.
void set_work(const trainer::Config& config, int64_t tokens_per_step, bool with_flops, baselines::Cell& cell);

}  // namespace mbb::suites
