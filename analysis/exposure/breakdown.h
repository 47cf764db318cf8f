// Where a step's time went, per rank, to the nanosecond: compute, exposed communication by kind, exposed copies, idle
// by cause, and the exclusive time of every op. The parts sum to the step. Formulas: the step breakdown of the
// project's numerics (compute = U(compute); exposed comm = U(comm) \ U(compute); exposed copy = U(copy) \ both).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "profiler/trace/trace.h"

namespace mbb::analysis {

enum class CommKind : uint8_t { kTp, kCp, kEp, kPp, kDp, kOther };
inline constexpr size_t kCommKinds = 6;
const char* name(CommKind kind);  // "tp", ..., "other"

// Why nothing ran. kHostBound: the next work was launched after the previous work ended. kLaunchGap: it was queued
// already, on the stream that ran last. kDependencyWait: it was queued and waited for another stream or rank.
// kBubble: the pipeline had no micro-batch for this stage.
enum class IdleCause : uint8_t { kHostBound, kLaunchGap, kDependencyWait, kBubble };
inline constexpr size_t kIdleCauses = 4;
const char* name(IdleCause cause);

struct CommTime {
  int64_t busy_ns = 0;     // U(spans of this kind)
  int64_t exposed_ns = 0;  // exclusive: an instant with several kinds in flight is split evenly between them
  int64_t waiting_ns = 0;  // part of exposed_ns before the last member arrived: bubble for PP, skew for the others
};

struct StepBreakdown {
  int32_t rank = 0;
  int32_t step = 0;
  int64_t total_ns = 0;
  int64_t compute_ns = 0;
  std::array<CommTime, kCommKinds> comm{};
  int64_t comm_busy_ns = 0;     // U(all comm)
  int64_t comm_overlap_ns = 0;  // U(all comm) ∩ U(compute)
  int64_t exposed_copy_ns = 0;
  int64_t idle_ns = 0;
  std::array<int64_t, kIdleCauses> idle_by_cause_ns{};

  int64_t exposed_comm_ns() const;
  int64_t bubble_ns() const;  // idle bubble + the waiting part of exposed PP
  int64_t skew_ns() const;    // the waiting part of the other exposed collectives
  // Shares of the step in percent; 0 for an empty step.
  double exposed_comm_pct() const;
  double bubble_pct() const;
  double overlap_pct() const;  // of communication time; 0 without communication
};

// Exclusive time of one op in one step of one rank. Each instant belongs to one span (compute before comm before copy;
// spans of one class that run at once share it evenly), so all ops plus idle sum to the step.
struct OpTime {
  profiler::StringId op = 0;  // Span::op, or Span::name where op is 0
  profiler::SpanKind kind = profiler::SpanKind::kCompute;
  int64_t exclusive_ns = 0;
  int64_t busy_ns = 0;  // sum of the spans' own lengths inside the step
  int64_t spans = 0;
};

struct StepTimes {
  StepBreakdown breakdown;
  std::vector<OpTime> ops;  // by (op, kind); empty unless asked for
};

struct BreakdownOptions {
  bool per_op = true;
};

// One entry per window of trace.steps, in that order. Device spans (every kind but host) of the window's rank are cut
// at the window's edges; which step a span is tagged with does not matter.
std::vector<StepTimes> break_down(const profiler::Trace& trace, const BreakdownOptions& options = {});

// The sum of breakdowns, for means over ranks or steps: totals and parts add up; rank and step are those of the first.
StepBreakdown sum(const std::vector<StepBreakdown>& parts);

}  // namespace mbb::analysis
