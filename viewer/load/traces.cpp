// Finding and merging trace files.
#include "viewer/load/traces.h"

#include <fmt/core.h>

#include "profiler/trace/trace_file.h"

namespace mbb::viewer {

using profiler::Trace;

void append_trace(Trace& into, Trace&& more) {
  if (into.tracks.empty() && into.spans.empty()) {
    into = std::move(more);
    return;
  }
  profiler::StringTable table;
  for (const std::string& text : into.strings) table.intern(text);
  std::vector<profiler::StringId> ids;
  ids.reserve(more.strings.size());
  for (const std::string& text : more.strings) ids.push_back(table.intern(text));
  const auto renumber = [&](profiler::StringId id) { return id < ids.size() ? ids[id] : profiler::StringId{0}; };
  const auto first_track = static_cast<std::uint32_t>(into.tracks.size());
  for (profiler::Track track : more.tracks) {
    track.name = renumber(track.name);
    into.tracks.push_back(track);
  }
  into.spans.reserve(into.spans.size() + more.spans.size());
  for (profiler::Span span : more.spans) {
    span.track += first_track;
    span.name = renumber(span.name);
    span.op = renumber(span.op);
    into.spans.push_back(span);
  }
  into.steps.insert(into.steps.end(), more.steps.begin(), more.steps.end());
  into.dropped_spans += more.dropped_spans;
  into.strings = table.strings();
}

Result<Trace> read_traces(const std::vector<std::filesystem::path>& files, const std::atomic<bool>& cancelled) {
  Trace all;
  for (const std::filesystem::path& file : files) {
    if (cancelled.load()) return fail(ErrorCode::kCancelled, "reading traces");
    MB_ASSIGN(Trace one, profiler::read_trace(file));
    append_trace(all, std::move(one));
  }
  return all;
}

Result<std::vector<std::filesystem::path>> trace_files(const SourceSpec& source, const std::string& run,
                                                       const std::string& cell, const baselines::Launch& launch) {
  if (launch.trace_files.empty()) {
    return fail(ErrorCode::kNotFound, fmt::format("launch {} of cell {} was not traced", launch.index, cell),
                "run it with profile_step_start and profile_step_end set");
  }
  MB_ASSIGN(const std::filesystem::path bundle, bundle_of(source, run));
  std::vector<std::filesystem::path> files;
  for (const std::string& file : launch.trace_files) {
    const std::filesystem::path relative(file);
    // A bundle is input from elsewhere: its file names must stay inside it.
    if (relative.is_absolute() || file.find("..") != std::string::npos) {
      return fail(ErrorCode::kBadFile, fmt::format("run {} names a trace outside its bundle", run),
                  "do not open bundles you do not trust");
    }
    files.push_back(bundle / "cells" / cell / "launches" / std::to_string(launch.index) / relative);
  }
  return files;
}

}  // namespace mbb::viewer
