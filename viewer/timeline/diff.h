// Two traces op by op: what each op took in one step, and which of them differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/trace/trace.h"

namespace mbb::viewer {

struct OpDelta {
  std::string op;   // path, or the span's name where it has none
  double a_ns = 0;  // a step, mean over the ranks that ran it
  double b_ns = 0;
  int a_calls = 0;
  int b_calls = 0;
  double delta_ns() const { return b_ns - a_ns; }
};

enum class DeltaMark : std::uint8_t { kSame, kSlower, kFaster, kOnlyHere };

struct TraceDiff {
  std::vector<OpDelta> ops;  // largest |difference| first
  // Mark of each string as an op of B seen from A, and of A seen from B.
  std::vector<DeltaMark> marks_a;
  std::vector<DeltaMark> marks_b;
};

// Compares one step of each trace (kNoStep: all spans). Host spans are left out. An op differs when its time changed by
// more than `least_share` of itself and by more than 0.01 % of all time.
TraceDiff diff_traces(const profiler::Trace& a, std::int32_t step_a, const profiler::Trace& b, std::int32_t step_b,
                      double least_share = 0.03);

}  // namespace mbb::viewer
