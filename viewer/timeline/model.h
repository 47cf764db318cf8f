// A trace arranged for drawing: lanes of intervals that do not overlap, with summaries so that work follows pixels.
//
// A track becomes one lane, or several where its spans nest or overlap. Above the intervals of a lane stands a tree of
// summaries, kFan to one: a painter descends only where a node is wider than a pixel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/exposure/intervals.h"
#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::viewer {

// What decides an interval's shade.
enum class ColorBy : std::uint8_t { kWork, kPhase, kMicroBatch };

// Shades 0..kWorkShades-1 are kinds of work in this order; for kPhase they are profiler::Phase; for kMicroBatch
// 0 is "none" and 1.. are micro-batches in turn.
enum class WorkShade : std::uint8_t {
  kGemm,
  kAttention,
  kMemoryBound,
  kCommunication,
  kCopy,
  kOptimizer,
  kHost,
  kExposed
};
inline constexpr int kWorkShades = 8;
inline constexpr int kMaxShades = 64;

inline constexpr std::uint32_t kNoItem = 0xFFFFFFFFU;
inline constexpr std::size_t kFan = 8;

struct LaneNode {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t busy_ns = 0;
  std::uint32_t longest = kNoItem;  // item
  std::uint8_t shade = 0;           // of most of the busy time
};

struct Lane {
  std::int32_t rank = 0;
  std::uint32_t track = 0;
  int depth = 0;         // 0: the track's first lane
  bool exposed = false;  // derived: exposed communication of a rank; its items are no spans
  std::string title;
  std::vector<analysis::TimeInterval> times;  // by start; none overlaps the next
  std::vector<std::uint32_t> spans;           // span of each item; empty in derived lanes
  std::vector<std::uint8_t> shades;
  std::vector<std::vector<LaneNode>> levels;  // levels[0]: kFan items a node; last: at most kFan nodes

  std::size_t size() const { return times.size(); }
  // The item at an instant, or the nearest within `slack_ns`; kNoItem where there is none.
  std::uint32_t item_at(std::int64_t at_ns, std::int64_t slack_ns) const;
};

struct TimelineModel {
  std::shared_ptr<const profiler::Trace> trace;
  ColorBy color_by = ColorBy::kWork;
  std::vector<Lane> lanes;  // by rank; in a rank host lanes first, then compute, communication, exposed, copies
  std::vector<std::int32_t> ranks;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  int micro_batches = 0;
  std::uint64_t left_out = 0;  // spans with impossible numbers, or more than kMaxDepth deep: said on the panel
  struct Member {
    std::uint64_t collective = 0;
    std::uint32_t span = 0;
  };
  std::vector<Member> by_collective;  // spans with a collective, sorted by it

  // Members of one collective call, in rank order.
  std::vector<std::uint32_t> members(std::uint64_t collective) const;
  // Earliest start and latest end of a step over all ranks; false where it is not traced.
  bool step_window(std::int64_t step, analysis::TimeInterval& window) const;
  std::vector<std::int32_t> steps() const;
};

// Lanes deeper than this are left out and counted.
inline constexpr int kMaxDepth = 12;

// kCancelled when `cancelled` was set meanwhile. Uses a few threads. An empty trace is an empty model.
// `kinds` tells the kind of an op by its path ("gemm"), where the run knows it; names tell the rest.
using OpKinds = std::unordered_map<std::string, std::string>;
Result<TimelineModel> build_timeline(std::shared_ptr<const profiler::Trace> trace, ColorBy color_by,
                                     const std::atomic<bool>& cancelled, const OpKinds& kinds = {});

// Spans of `span`'s rank with its correlation: a launch and what it caused. Looks at every span: for a worker thread.
Result<std::vector<std::uint32_t>> find_linked(const profiler::Trace& trace, std::uint32_t span,
                                               const std::atomic<bool>& cancelled);

}  // namespace mbb::viewer
