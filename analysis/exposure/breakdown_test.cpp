// Tests of the step breakdown: hand-made steps, exact sums on random traces, causes of idle time.
#include "analysis/exposure/breakdown.h"

#include <gtest/gtest.h>

#include <random>

#include "analysis/exposure/intervals.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;
using profiler::Trace;

constexpr size_t kTp = static_cast<size_t>(CommKind::kTp);
constexpr size_t kPp = static_cast<size_t>(CommKind::kPp);
constexpr size_t kDp = static_cast<size_t>(CommKind::kDp);

// One rank, tracks 0 compute, 1 tp, 2 dp, 3 copy, 4 host; strings 1..5 are op names.
Trace one_rank() {
  Trace trace;
  trace.strings = {"", "a", "b", "c", "d", "e"};
  for (const StreamKind kind :
       {StreamKind::kCompute, StreamKind::kTp, StreamKind::kDp, StreamKind::kCopy, StreamKind::kHost})
    trace.tracks.push_back({0, kind, 0});
  trace.steps = {{0, 1, 0, 100}};
  return trace;
}

Span span(int64_t start, int64_t end, uint32_t track, SpanKind kind, profiler::StringId op) {
  return Span{.start_ns = start, .end_ns = end, .track = track, .name = op, .op = op, .kind = kind};
}

void expect_sums(const StepTimes& times) {
  const StepBreakdown& b = times.breakdown;
  EXPECT_EQ(b.compute_ns + b.exposed_comm_ns() + b.exposed_copy_ns + b.idle_ns, b.total_ns);
  int64_t causes = 0;
  for (const int64_t part : b.idle_by_cause_ns) causes += part;
  EXPECT_EQ(causes, b.idle_ns);
  int64_t ops = 0;
  for (const OpTime& op : times.ops) ops += op.exclusive_ns;
  EXPECT_EQ(ops + b.idle_ns, b.total_ns);
}

TEST(Breakdown, AStepByHand) {
  Trace trace = one_rank();
  trace.spans = {
      span(10, 40, 0, SpanKind::kCompute, 1),  span(30, 60, 1, SpanKind::kCommTp, 2),
      span(50, 70, 2, SpanKind::kCommDp, 3),   span(65, 80, 3, SpanKind::kCopy, 4),
      span(90, 130, 0, SpanKind::kCompute, 5),  // runs past the window: cut
  };
  const auto all = break_down(trace);
  ASSERT_EQ(all.size(), 1u);
  const StepBreakdown& b = all[0].breakdown;
  expect_sums(all[0]);
  EXPECT_EQ(b.total_ns, 100);
  EXPECT_EQ(b.compute_ns, 40);
  EXPECT_EQ(b.comm_busy_ns, 40);
  EXPECT_EQ(b.comm_overlap_ns, 10);
  EXPECT_EQ(b.comm[kTp].busy_ns, 30);
  EXPECT_EQ(b.comm[kTp].exposed_ns, 10 + 5);  // 40-50 alone, 50-60 shared with DP
  EXPECT_EQ(b.comm[kDp].exposed_ns, 5 + 10);
  EXPECT_EQ(b.exposed_copy_ns, 10);
  EXPECT_EQ(b.idle_ns, 20);
  EXPECT_DOUBLE_EQ(b.exposed_comm_pct(), 30.0);
  EXPECT_DOUBLE_EQ(b.overlap_pct(), 25.0);
  ASSERT_EQ(all[0].ops.size(), 5u);
  EXPECT_EQ(all[0].ops[4].exclusive_ns, 10);
  EXPECT_EQ(all[0].ops[4].busy_ns, 10);
}

TEST(Breakdown, ConcurrentComputeIsSplitEvenlyAndExactly) {
  Trace trace = one_rank();
  trace.tracks.push_back({0, StreamKind::kCompute, 0});
  trace.tracks.push_back({0, StreamKind::kCompute, 0});
  trace.spans = {span(0, 100, 0, SpanKind::kCompute, 1), span(0, 100, 5, SpanKind::kCompute, 2),
                 span(0, 100, 6, SpanKind::kCompute, 3)};
  const auto all = break_down(trace);
  expect_sums(all[0]);
  EXPECT_EQ(all[0].breakdown.compute_ns, 100);
  EXPECT_EQ(all[0].ops[0].exclusive_ns, 34);
  EXPECT_EQ(all[0].ops[1].exclusive_ns, 33);
  EXPECT_EQ(all[0].ops[2].exclusive_ns, 33);
}

TEST(Breakdown, WaitingForTheLastMemberIsSkewOrBubble) {
  Trace trace;
  trace.strings = {"", "ar", "recv"};
  trace.tracks = {{0, StreamKind::kTp, 0}, {1, StreamKind::kTp, 0}};
  trace.steps = {{0, 1, 0, 100}, {1, 1, 0, 100}};
  Span early = span(10, 40, 0, SpanKind::kCommTp, 1);
  Span late = span(30, 40, 1, SpanKind::kCommTp, 1);
  early.collective = late.collective = 77;
  Span recv = span(50, 90, 0, SpanKind::kCommPp, 2);
  Span send = span(80, 90, 1, SpanKind::kCommPp, 2);
  recv.collective = send.collective = 78;
  trace.spans = {early, recv, late, send};
  const auto all = break_down(trace);
  expect_sums(all[0]);
  expect_sums(all[1]);
  EXPECT_EQ(all[0].breakdown.skew_ns(), 20);
  EXPECT_EQ(all[0].breakdown.comm[kPp].waiting_ns, 30);
  // 30 in the receive, and the gap before it and the tail of a rank with pipeline traffic.
  EXPECT_EQ(all[0].breakdown.bubble_ns(), 30 + 10 + 10);
  EXPECT_EQ(all[1].breakdown.skew_ns(), 0);
}

TEST(Breakdown, CausesOfIdle) {
  Trace trace = one_rank();
  Span launch_late = span(25, 26, 4, SpanKind::kHost, 1);
  launch_late.correlation = 1;
  Span launch_early = span(2, 3, 4, SpanKind::kHost, 1);
  launch_early.correlation = 2;
  Span first = span(0, 20, 0, SpanKind::kCompute, 1);
  Span host_bound = span(30, 40, 0, SpanKind::kCompute, 2);
  host_bound.correlation = 1;
  Span queued = span(43, 50, 0, SpanKind::kCompute, 3);
  queued.correlation = 2;
  Span other_stream = span(60, 100, 3, SpanKind::kCopy, 4);
  trace.spans = {first, host_bound, queued, other_stream, launch_early, launch_late};
  const auto all = break_down(trace);
  expect_sums(all[0]);
  const auto& idle = all[0].breakdown.idle_by_cause_ns;
  EXPECT_EQ(idle[static_cast<size_t>(IdleCause::kHostBound)], 10);
  EXPECT_EQ(idle[static_cast<size_t>(IdleCause::kLaunchGap)], 3);
  EXPECT_EQ(idle[static_cast<size_t>(IdleCause::kDependencyWait)], 10);
  EXPECT_EQ(idle[static_cast<size_t>(IdleCause::kBubble)], 0);
}

TEST(Breakdown, WindowWithoutSpansIsAllIdle) {
  Trace trace = one_rank();
  trace.steps.push_back({9, 1, 5, 25});  // a rank without tracks
  trace.steps.push_back({0, 2, 50, 50});
  const auto all = break_down(trace);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].breakdown.idle_ns, 100);
  EXPECT_EQ(all[1].breakdown.idle_ns, 20);
  EXPECT_EQ(all[2].breakdown.total_ns, 0);
  EXPECT_EQ(all[2].breakdown.exposed_comm_pct(), 0.0);
}

TEST(Breakdown, RandomTracesAgreeWithIntervalArithmetic) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    Trace trace = one_rank();
    trace.steps = {{0, 1, 20, 150}, {0, 2, 150, 260}};
    if (round % 3 == 1) std::swap(trace.steps[0], trace.steps[1]);  // out of order
    if (round % 3 == 2) profiler::sort_spans(trace);
    const int count = static_cast<int>(random() % 60);
    for (int i = 0; i < count; ++i) {
      const auto start = static_cast<int64_t>(random() % 300);
      const auto kind = static_cast<SpanKind>(random() % profiler::kSpanKinds);
      const auto track = static_cast<uint32_t>(random() % 5);
      const auto op = static_cast<profiler::StringId>(1 + random() % 5);
      Span one = span(start, start + static_cast<int64_t>(random() % 25), track, kind, op);
      if (is_comm(kind) && random() % 2 == 0) one.collective = 1 + random() % 4;
      trace.spans.push_back(one);
    }
    const auto all = break_down(trace);
    for (const StepTimes& times : all) {
      expect_sums(times);
      const StepBreakdown& b = times.breakdown;
      const TimeInterval window = times.breakdown.step == 1 ? TimeInterval{20, 150} : TimeInterval{150, 260};
      std::vector<TimeInterval> compute;
      std::vector<TimeInterval> comm;
      std::vector<TimeInterval> copy;
      for (const Span& one : trace.spans) {
        if (one.kind == SpanKind::kCompute) compute.push_back({one.start_ns, one.end_ns});
        if (is_comm(one.kind)) comm.push_back({one.start_ns, one.end_ns});
        if (one.kind == SpanKind::kCopy) copy.push_back({one.start_ns, one.end_ns});
      }
      const Intervals u_compute = clip(unite_all(compute), window);
      const Intervals u_comm = clip(unite_all(comm), window);
      const Intervals u_copy = clip(unite_all(copy), window);
      ASSERT_EQ(b.compute_ns, length_ns(u_compute));
      ASSERT_EQ(b.exposed_comm_ns(), length_ns(subtract(u_comm, u_compute)));
      ASSERT_EQ(b.exposed_copy_ns, length_ns(subtract(subtract(u_copy, u_compute), u_comm)));
      ASSERT_EQ(b.comm_overlap_ns, length_ns(intersect(u_comm, u_compute)));
      ASSERT_EQ(b.comm_busy_ns, length_ns(u_comm));
    }
    const StepBreakdown both = sum({all[0].breakdown, all[1].breakdown});
    EXPECT_EQ(both.total_ns, 240);
    EXPECT_EQ(both.idle_ns, all[0].breakdown.idle_ns + all[1].breakdown.idle_ns);
  }
}

}  // namespace
}  // namespace mbb::analysis
