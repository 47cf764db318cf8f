// The trace on disk: streamed while it is captured, compressed, checksummed, read by rank and step.
//
//   "MBTRACE1" version          16 bytes
//   span blocks                 up to kSpansPerBlock spans of one rank, columns of fixed width, zstd
//   meta block                  strings, tracks, step windows, dropped count
//   index block                 offset, rank, steps and time range of every span block
//   index offset, hash, "MBTREND1"
// Every block carries a hash of its bytes. All numbers are little-endian. The file appears under its name only when
// finish() has written all of it; a reader trusts nothing: truncation and flipped bytes are errors, never crashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

inline constexpr size_t kSpansPerBlock = 65536;

// One thread at a time. Spans of a rank should come about in time order: then they compress and seek best.
class TraceWriter {
 public:
  static Result<TraceWriter> create(const std::filesystem::path& path);
  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  ~TraceWriter();  // without finish(): removes what was written

  StringId intern(std::string_view text);
  uint32_t add_track(const Track& track);  // its index; track.name from intern()
  void add_step(const StepWindow& step);
  void add(const Span& span);  // an I/O error is kept and returned by finish()
  void add_dropped(uint64_t spans);

  // Writes what is left, flushes to disk, renames. Nothing may be added afterwards.
  Status finish();

 private:
  struct Impl;
  explicit TraceWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Which spans to read; the defaults are all. Spans without a step (kNoStep) have step -1.
struct TraceQuery {
  int32_t first_rank = std::numeric_limits<int32_t>::min();
  int32_t last_rank = std::numeric_limits<int32_t>::max();
  int32_t first_step = std::numeric_limits<int32_t>::min();
  int32_t last_step = std::numeric_limits<int32_t>::max();
};

class TraceReader {
 public:
  // Reads and checks everything but the spans.
  static Result<TraceReader> open(const std::filesystem::path& path);
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  const Trace& without_spans() const;  // strings, tracks, steps, dropped count
  uint64_t span_count() const;         // as the index says

  // Calls `take` with the matching spans of each block, in file order; only blocks that can match are read.
  Status read(const TraceQuery& query, const std::function<void(std::span<const Span>)>& take) const;
  Result<Trace> read_all(const TraceQuery& query = {}) const;

 private:
  struct Impl;
  explicit TraceReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

Status write_trace(const std::filesystem::path& path, const Trace& trace);
Result<Trace> read_trace(const std::filesystem::path& path);

}  // namespace mbb::profiler
