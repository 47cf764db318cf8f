// One step of one or two traces as a picture: a lane a stream, two runs one above the other on one scale, ops that
// differ marked. For HTML reports; the viewer draws its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::analysis {

struct TimelineSide {
  const profiler::Trace* trace = nullptr;
  std::string label;  // "baseline r-20261128-0412-7d3a"
  int32_t step = -1;  // -1: the first traced one
};

// An op of a step by path, summed over its executions on the rank, in the two runs.
struct OpPair {
  std::string path;
  int64_t before_ns = 0;  // 0: not in that run
  int64_t after_ns = 0;
  int64_t change_ns() const { return after_ns - before_ns; }
};

// Largest change first. kNotFound when a side has no such step on the rank.
Result<std::vector<OpPair>> pair_ops(const TimelineSide& before, const TimelineSide& after, int32_t rank);

// `after` alone when `before` has no trace. An op is marked (outlined, with an arrow) when its time changed by a tenth
// and by a hundredth of the step, or when the other run lacks it and it took a thousandth of one. `id` makes inner
// names unique in a document.
Result<std::string> timelines_svg(const TimelineSide& before, const TimelineSide& after, int32_t rank,
                                  const std::string& id);

}  // namespace mbb::analysis
