// The trace of one launch: the files its processes wrote, as one.
#pragma once

#include <atomic>
#include <filesystem>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"
#include "viewer/load/source.h"

namespace mbb::viewer {

// Puts `more` beside `into`: strings are numbered anew, tracks and spans follow those that are there.
void append_trace(profiler::Trace& into, profiler::Trace&& more);

// One or several files; the first that cannot be read is the error.
Result<profiler::Trace> read_traces(const std::vector<std::filesystem::path>& files,
                                    const std::atomic<bool>& cancelled);

// The trace files of a launch in the run's bundle; kNotFound with the reason where it was not traced.
Result<std::vector<std::filesystem::path>> trace_files(const SourceSpec& source, const std::string& run,
                                                       const std::string& cell, const baselines::Launch& launch);

}  // namespace mbb::viewer
