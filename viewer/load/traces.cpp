// Finding and merging trace files.
#include "viewer/load/traces.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

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

namespace {

constexpr std::uint64_t kWorthThreads = 1'000'000;  // spans

// Decompresses the ranks of a large file on several threads, each with a reader of its own, into one array.
Result<Trace> read_wide(const std::filesystem::path& file, const profiler::TraceReader& index,
                        const std::atomic<bool>& cancelled) {
  Trace trace = index.without_spans();
  trace.spans.resize(index.span_count());
  const std::vector<std::int32_t> all = profiler::ranks(trace);
  std::atomic<std::size_t> next_rank{0};
  std::atomic<std::size_t> next_span{0};
  std::mutex mutex;
  std::optional<Error> trouble;
  const auto note = [&](Error error) {
    const std::lock_guard lock(mutex);
    if (!trouble) trouble = std::move(error);
  };
  const auto serve = [&] {
    Result<profiler::TraceReader> reader = profiler::TraceReader::open(file);
    if (!reader.has_value()) return note(std::move(reader.error()));
    for (std::size_t i = next_rank++; i < all.size() && !cancelled.load(); i = next_rank++) {
      const Status status =
          reader->read({.first_rank = all[i], .last_rank = all[i]}, [&](std::span<const profiler::Span> some) {
            const std::size_t at = next_span.fetch_add(some.size());
            if (at + some.size() <= trace.spans.size())
              std::copy(some.begin(), some.end(), trace.spans.begin() + static_cast<std::ptrdiff_t>(at));
          });
      if (!status.has_value()) return note(status.error());
    }
  };
  std::vector<std::thread> others;
  const std::size_t threads = std::min<std::size_t>({4, all.size(), std::max(1U, std::thread::hardware_concurrency())});
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(serve);
  serve();
  for (std::thread& other : others) other.join();
  if (cancelled.load()) return fail(ErrorCode::kCancelled, "reading traces");
  if (trouble) return tl::unexpected<Error>(std::move(*trouble));
  if (next_span.load() != trace.spans.size()) {
    return fail(
        ErrorCode::kBadFile,
        fmt::format("trace {}: {} spans where its index says {}", file.string(), next_span.load(), trace.spans.size()),
        "the file is damaged; trace the launch again");
  }
  return trace;
}

Result<Trace> read_one(const std::filesystem::path& file, const std::atomic<bool>& cancelled) {
  MB_ASSIGN(const profiler::TraceReader reader, profiler::TraceReader::open(file));
  if (reader.span_count() >= kWorthThreads) return read_wide(file, reader, cancelled);
  return reader.read_all();
}

}  // namespace

Result<Trace> read_traces(const std::vector<std::filesystem::path>& files, const std::atomic<bool>& cancelled) {
  Trace all;
  for (const std::filesystem::path& file : files) {
    if (cancelled.load()) return fail(ErrorCode::kCancelled, "reading traces");
    MB_ASSIGN(Trace one, read_one(file, cancelled));
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
